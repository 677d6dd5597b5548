//! Runs sweeps over a grid using only the decision crates, which are quick to build while they are being changed.

use fairmesh_sim::sweep::{Grid, sweep};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let grid: Grid = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
        let threads = std::thread::available_parallelism()?.get();
        for summary in sweep(&grid, threads, || eprint!("."))?.summaries {
            println!("{}", serde_json::to_string(&summary)?);
        }
    }
    Ok(())
}
