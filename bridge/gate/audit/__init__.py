"""The record of what runs did, written before it is done."""
