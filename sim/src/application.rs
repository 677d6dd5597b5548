//! Applications of several services, which planners of traffic are judged by.

mod random;

pub use random::RandomApplication;
