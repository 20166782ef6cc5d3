"""Records what an agent and its model say to each other, with the tokens, as data to train on."""
