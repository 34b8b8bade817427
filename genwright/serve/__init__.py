"""The HTTP server: OpenAI's and Anthropic's endpoints over an engine that runs in its own process."""
