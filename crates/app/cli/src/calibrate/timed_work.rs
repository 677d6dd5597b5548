//! The timed work: the same on every machine, with a result that proves it was done.
//!
//! Half of it is integer arithmetic in which each step depends on the previous one, so that it measures frequency times
//! instructions per cycle. The other half reads and writes unpredictable indexes of a table larger than a core's
//! caches, as services do that traverse their own data. Floating point and disks are left out: services bound by those
//! set a weight for their endpoints.

/// Number of entries of the table, which takes 4 MiB.
const TABLE: usize = 1 << 19;
/// Number of arithmetic steps in one round.
const ARITHMETIC: u32 = 12_000_000;
/// Number of steps through the table in one round.
const MEMORY: u32 = 1_500_000;

/// Result that every round must have.
pub(super) const RESULT: u64 = 0xbfd5_f50c_5955_8eb6;

/// Creates the table.
pub(super) fn table() -> Vec<u64> {
    vec![0; TABLE]
}

/// Runs one round. Returns [`RESULT`] on a machine that computes correctly.
pub(super) fn round(table: &mut [u64]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for entry in table.iter_mut() {
        state = mix(state);
        *entry = state;
    }
    walk(table, arithmetic(state))
}

fn arithmetic(mut state: u64) -> u64 {
    let mut branches = 0_u64;
    for _ in 0..ARITHMETIC {
        state = mix(state);
        if state & 7 == 0 {
            branches = branches.rotate_left(1) ^ state;
        }
    }
    state ^ branches
}

fn walk(table: &mut [u64], mut state: u64) -> u64 {
    for _ in 0..MEMORY {
        // The length of the table is a power of two.
        let read = state as usize & (table.len() - 1);
        state = mix(state ^ table[read]);
        let write = (state >> 40) as usize & (table.len() - 1);
        table[write] = state;
    }
    state
}

/// Mixes the state. The result of a step cannot be predicted without the previous one.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_mul(0xd129_0d3b_26c1_c4b7).wrapping_add(0x2545_f491_4f6c_dd1d);
    state ^ (state >> 29)
}
