"""tarn-gateway: an OpenAI-compatible front before engines, which asks the Conductor where each
request is served (docs/GATEWAY.md)."""
