//! Routes for packets that come here though they are meant for others: rules of nftables mark them, and the system delivers what
//! is marked to this machine (Linux, `Documentation/networking/tproxy.rst`).

use std::{
    io,
    process::{Command, Output},
};

use super::{
    nft::not_permitted,
    places::{FAMILIES, Family},
    rules::MARK,
};
use crate::failure::Failure;

/// Where it is on machines whose users do not have it in their path.
const USUAL: &str = "/usr/sbin/ip";
/// What `ip` is given, line by line.
pub(super) fn steps(families: &[Family]) -> Vec<String> {
    let of_one = |Family { option, everywhere, .. }: &Family| {
        [
            format!("{option} rule add pref {MARK} fwmark {MARK} lookup {MARK}"),
            format!("{option} route replace local {everywhere} dev lo table {MARK}"),
        ]
    };
    families.iter().flat_map(of_one).collect()
}

/// Has these families routed so.
pub(super) fn add(families: &[Family]) -> Result<(), Failure> {
    for step in steps(families) {
        let output = run(&step).map_err(|error| missing(&error))?;
        // As it is when this is done once more; connections under way go on.
        let is_there = complaint(&output).contains("File exists");
        if !output.status.success() && !is_there {
            return Err(refused(&step, &output));
        }
    }
    Ok(())
}

/// Removes the routes of all other families; whether there were any.
pub(super) fn keep(families: &[Family]) -> Result<bool, Failure> {
    let others = FAMILIES.into_iter().filter(|family| !families.contains(family));
    others.map(remove_of).try_fold(false, |any, removed| Ok(removed? || any))
}

fn remove_of(Family { option, .. }: Family) -> Result<bool, Failure> {
    match run(&format!("{option} rule del pref {MARK} fwmark {MARK} lookup {MARK}")) {
        Ok(output) if output.status.success() => {}
        // There is none. Who may not change them was told so by nft.
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(missing(&error)),
    }
    let step = format!("{option} route flush table {MARK}");
    let output = run(&step).map_err(|error| missing(&error))?;
    let is_empty = complaint(&output).contains("FIB table does not exist");
    if output.status.success() || is_empty { Ok(true) } else { Err(refused(&step, &output)) }
}

fn run(step: &str) -> io::Result<Output> {
    let output = |program| Command::new(program).args(step.split(' ')).env("LC_ALL", "C").output();
    match output("ip") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => output(USUAL),
        outcome => outcome,
    }
}

fn missing(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::failed_with(
            "there is no ip on this machine, which routes what passes through it to the proxy",
            "install the package iproute2, or leave --from away",
        ),
        _ => Failure::failed(format!("cannot run ip: {error}")),
    }
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn refused(step: &str, output: &Output) -> Failure {
    if complaint(output).contains("Operation not permitted") {
        return not_permitted();
    }
    Failure::failed_with(
        format!("'ip {step}' failed: {}", complaint(output)),
        "it needs a kernel with CONFIG_IP_MULTIPLE_TABLES, and CONFIG_IPV6_MULTIPLE_TABLES for IPv6",
    )
}
