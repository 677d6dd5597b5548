//! What long-running commands say about themselves while they run.
