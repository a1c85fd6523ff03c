"""Which MCP servers does this user have?"""
