"""A server on stdio on the Python SDK 1.6, which breaks at a method that it does not know."""

from mcp.server.fastmcp import FastMCP

server = FastMCP("python-mcp1-6")


@server.tool()
def quick() -> str:
    return "quick"


server.run("stdio")
