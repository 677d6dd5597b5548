//! Runs decisions as programs that the kernel has verified. `BPF_PROG_TEST_RUN` cannot run `sk_msg` programs,
//! so a program of another type calls the same functions.

use std::{error::Error, path::Path};

use aya::{
    Ebpf, EbpfLoader,
    maps::Array,
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use fairmesh_balancer::SharedStats;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::{
    arith,
    decider::Decider,
    pick,
    pick::POLICY_BYTES,
    redirect,
    route::{self, REQUEST_BYTES},
};

/// A packet of minimal size, as input of a test run.
const PACKET: [u8; 64] = [0; 64];

/// One program for each kind of decision.
pub(crate) struct Programs(Ebpf);

impl Programs {
    pub(crate) fn load(object: &Path) -> Result<Self, Box<dyn Error>> {
        // The object declares all maps of the kernel form. They are pinned by name, here in a temporary
        // directory.
        let folder = tempfile::tempdir()?;
        mount("bpf", folder.path(), "bpf", MountFlags::empty(), None)?;
        let loaded = EbpfLoader::new().default_map_pin_directory(folder.path()).load_file(object);
        unmount(folder.path(), UnmountFlags::DETACH)?;
        let mut programs = loaded?;
        for kind in ["pick", "route", "arith", "redirect"] {
            program(&mut programs, kind).load()?;
        }
        Ok(Self(programs))
    }

    pub(crate) fn decide(&mut self, kind: &str, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        const PICK: usize = POLICY_BYTES + size_of::<SharedStats>() + 16;
        const ROUTE: usize = POLICY_BYTES + 8 + REQUEST_BYTES;
        let decide = |input: &Vec<u8>| match kind {
            "pick" => self.decide_one::<PICK, { pick::OUTPUT_BYTES }>(kind, input),
            "redirect" => {
                self.decide_one::<{ redirect::INPUT_BYTES }, { redirect::OUTPUT_BYTES }>(kind, input)
            }
            "route" => self.decide_one::<ROUTE, { route::OUTPUT_BYTES }>(kind, input),
            _ => self.decide_one::<{ arith::INPUT_BYTES }, { arith::OUTPUT_BYTES }>(kind, input),
        };
        inputs.iter().map(decide).collect()
    }

    fn decide_one<const INPUT: usize, const OUTPUT: usize>(&mut self, kind: &str, input: &[u8]) -> Vec<u8> {
        let map = self.0.map_mut(&format!("{kind}_inputs")).unwrap();
        let mut inputs: Array<_, [u8; INPUT]> = map.try_into().unwrap();
        inputs.set(0, <[u8; INPUT]>::try_from(input).unwrap(), 0).unwrap();
        let options = TestRunOptions { data_in: Some(&PACKET), ..TestRunOptions::new() };
        program(&mut self.0, kind).test_run(options).unwrap();
        let map = self.0.map(&format!("{kind}_outputs")).unwrap();
        let outputs: Array<_, [u8; OUTPUT]> = map.try_into().unwrap();
        outputs.get(&0, 0).unwrap().to_vec()
    }
}

fn program<'a>(programs: &'a mut Ebpf, kind: &str) -> &'a mut SchedClassifier {
    programs.program_mut(&format!("{kind}_vectors")).unwrap().try_into().unwrap()
}

/// The object pins maps by name by default. Without an own directory, each test run would leave all maps on
/// the machine.
#[test]
fn kernel_vector_tests_leave_no_pinned_maps() {
    let Some(_decider) = Decider::in_kernel() else { return };
    let pin = Path::new("/sys/fs/bpf/links");
    assert!(
        !pin.exists(),
        "a test has left {}: remove the maps there once it does so no more",
        pin.display()
    );
}
