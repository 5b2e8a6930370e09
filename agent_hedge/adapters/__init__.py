"""One file or folder per framework. They see the core through its ports, and nothing sideways."""
