"""Persistent state, which bridges share: one database, and files named by their content.

A read without a database does not import SQLAlchemy.
"""

from bridge.store.store import Document, ServerUrl, Store, StoreError, Transaction, adapter

__all__ = ["Document", "ServerUrl", "Store", "StoreError", "Transaction", "adapter"]
