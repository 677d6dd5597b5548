//! Start, stop and hot upgrade of a proxy.

pub(crate) mod bind;
pub(crate) mod run;
