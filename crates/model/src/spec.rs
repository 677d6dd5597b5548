//! What a person writes.
