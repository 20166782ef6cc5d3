"""Environment packages as their authors write them, run on this distribution and on the released peer."""
