//! @@
fn main() {}
