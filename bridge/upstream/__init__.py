"""The MCP client side: sessions to the user's servers, kept open across runs.

`Pool` is the entry point. Owns transports, protocol negotiation, requests, the answers to a
server's own requests, and OAuth. Which servers there are is discovery's; whether a server may
start or a tool be called is the gate's.
"""
