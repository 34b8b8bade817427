"""What answers a script in a person's place: the keyboard, windows, pages and servers."""
