"""What the bridge keeps between runs and between bridges: one database, and files by their content.

SQLAlchemy is imported when something is first kept or looked for in a database that is there.
"""

from bridge.store.store import Document, ServerUrl, Store, StoreError, Transaction, owner_digest

__all__ = ["Document", "ServerUrl", "Store", "StoreError", "Transaction", "owner_digest"]
