//! Checks that the kernel's C code decides the vectors like the router and the balancer, both natively and in
//! the kernel.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]
#![allow(unsafe_code, reason = "values of maps are passed to a program as bytes")]

mod arith;
mod decider;
mod in_kernel;
mod parse;
mod pick;
mod redirect;
mod route;
