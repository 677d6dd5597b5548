//! How answers look: tables for people, JSON and YAML for programs.

/// Colours and frames of error reports only where a person looks on.
pub(crate) fn decide_colour() {}
