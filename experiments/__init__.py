"""The edge: flags, configuration, files and plots around `specjax`."""
