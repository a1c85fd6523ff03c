"""What the bridge keeps between runs and between bridges: one database, and files by their content.

Owns the schema and its migrations, transactions, and what a full disk or a damaged file means.
What is kept, for whom and how much of it is for those who keep it. SQLAlchemy is imported when
something is first kept or looked for in a database that is there, and not before.
"""

from bridge.store.server_url import ServerUrl
from bridge.store.store import Document, Store, StoreError, Transaction, owner_digest

__all__ = ["Document", "ServerUrl", "Store", "StoreError", "Transaction", "owner_digest"]
