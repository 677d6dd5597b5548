//! The blocks of the documentation, compiled.

/// `docs/library.md`.
#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
pub struct Library;
