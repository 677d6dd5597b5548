//! Which programs the selectors of workload records match.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::{ProgramFacts, ProgramSelector, WorkloadEntry};

fn program() -> ProgramFacts {
    ProgramFacts {
        uid: 1001,
        gid: 1002,
        executable: Ok("/usr/bin/cart".into()),
        cgroup: Ok("/system.slice/cart.service/worker".into()),
        network_namespace: Err("permission denied".into()),
    }
}

fn entry(selector: ProgramSelector) -> WorkloadEntry {
    WorkloadEntry { programs: vec![selector], agents: Vec::new() }
}

#[test]
fn program_must_meet_all_conditions_of_workload_selector() {
    let cart = ProgramSelector {
        uid: Some(1001),
        gid: Some(1002),
        executable: Some("/usr/bin/cart".into()),
        cgroup: Some("/system.slice/cart.service".into()),
        network_namespace: None,
    };
    assert_eq!(entry(cart.clone()).check(&program()), Ok(()));
    let other = ProgramSelector { uid: Some(1), ..cart.clone() };
    let two = WorkloadEntry { programs: vec![other.clone(), cart], agents: Vec::new() };
    assert_eq!(two.check(&program()), Ok(()));
    assert_eq!(
        entry(other).check(&program()).unwrap_err().to_string(),
        "programs[0] does not match: uid is 1001, not 1"
    );
    for (selector, problem) in [
        (ProgramSelector { gid: Some(7), ..ProgramSelector::default() }, "gid is 1002, not 7"),
        (
            ProgramSelector { cgroup: Some("/system.slice/cart".into()), ..ProgramSelector::default() },
            "cgroup is /system.slice/cart.service/worker, not /system.slice/cart",
        ),
        (
            ProgramSelector { executable: Some("/bin/cart".into()), ..ProgramSelector::default() },
            "executable is /usr/bin/cart, not /bin/cart",
        ),
        (
            ProgramSelector { network_namespace: Some("host".into()), ..ProgramSelector::default() },
            "networkNamespace is to be host, and cannot be read: permission denied",
        ),
    ] {
        let error = entry(selector).check(&program()).unwrap_err();
        assert_eq!(error.to_string(), format!("programs[0] does not match: {problem}"));
    }
}

#[test]
fn workload_selector_that_any_user_could_match_is_refused() {
    let executable = ProgramSelector { executable: Some("/bin/cart".into()), ..ProgramSelector::default() };
    assert!(entry(executable.clone()).validate().is_err());
    assert!(entry(ProgramSelector { uid: Some(0), ..executable }).validate().is_ok());
    assert!(WorkloadEntry::default().validate().is_err());
    for wrong in ["", "cart", "/cart/", "/a/../b"] {
        let selector = ProgramSelector { cgroup: Some(wrong.into()), ..ProgramSelector::default() };
        assert!(entry(selector).validate().is_err(), "{wrong}");
    }
}
