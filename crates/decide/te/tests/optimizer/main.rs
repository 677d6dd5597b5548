//! The optimizer on cases whose answers are known: SLATE's own (Figures 3a and 3b, §3.3, §3.4, Appendix A), a closed form, and shedding.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod acceptance;
mod admission;
mod cycles;
mod egress;
mod properties;
mod tables;
mod world;
