"""What the backends that speak HTTP over aiohttp share: bodies without copies, and a watch."""
