"""The answers as people hold them: each is the plain answer of a lower layer that draws, shows and writes itself."""
