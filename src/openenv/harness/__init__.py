"""Agent programs inside an environment: a message to the agent is a step, and its turn the observation."""
