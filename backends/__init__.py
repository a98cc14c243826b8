"""The built-in backends. Nothing imports this folder: they are found through their entry points, like anybody's."""
