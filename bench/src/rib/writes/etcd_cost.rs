//! Cost of keeping records in etcd: the same control plane on each store, with the same stream of writes.

use std::{path::Path, time::Duration};

use fairmesh_wire::transport::Address;

use super::{ETCD, START, Scale, connect, full_speed};
use crate::{
    report::Report,
    rib::{
        etcd::Etcd,
        writes::{
            write_target::{Target, Writer, fill},
            write_workload::WriteWorkload,
        },
    },
    role_process::RoleProcess,
};

/// Batches per second on each store, as the median of turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    etcd: f64,
    redb: f64,
    store: u64,
    turn: Duration,
}

impl Ratio {
    pub(crate) fn report(&self, report: &mut Report) {
        let note = format!(
            "batches a second with the store in etcd ({:.0}) ÷ in a file ({:.0}), on {:.1} GB, turns of {} s",
            self.etcd,
            self.redb,
            self.store as f64 / 1e9,
            self.turn.as_secs()
        );
        report.figure("etcd_vs_redb_write_ratio", self.etcd / self.redb, None, note);
    }
}

/// Measures both, in turns.
pub(super) async fn measure(dir: &Path, scale: Scale) -> Result<Ratio, String> {
    let etcd = Etcd::start(&dir.join("data"), &ETCD).await?;
    let address = format!("etcd://{}/bench", etcd.address);
    let (_on_etcd, in_etcd) =
        start(&dir.join("on-etcd"), &["control-plane", "--etcd", &address], scale.etcd).await?;
    let (_on_redb, in_redb) = start(&dir.join("on-redb"), &["control-plane"], scale.etcd).await?;
    let (mut of_etcd, mut of_redb) = (Vec::new(), Vec::new());
    for _ in 0..scale.turns {
        of_etcd.push(full_speed(&in_etcd, scale.turn).await?.0);
        of_redb.push(full_speed(&in_redb, scale.turn).await?.0);
    }
    Ok(Ratio { etcd: middle(of_etcd), redb: middle(of_redb), store: scale.etcd, turn: scale.turn })
}

/// Starts a control plane with a filled store.
async fn start(dir: &Path, args: &[&str], bytes: u64) -> Result<(RoleProcess, Writer), String> {
    eprintln!("{}: {:.1} GB are written", args.join(" "), bytes as f64 / 1e9);
    let (part, address) = RoleProcess::start_within(START, dir, args).await?;
    let target = Target::Fairmesh(Box::new(connect(&Address::Tcp(address)).await?));
    let mut workload = WriteWorkload::of(bytes);
    fill(&mut workload, async |batch| target.write(batch).await.map(drop)).await?;
    Ok((part, Writer::new(target, workload)))
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
