//! The server side: a tower layer that reports load, checks shard ownership, registers the service and drains it.
