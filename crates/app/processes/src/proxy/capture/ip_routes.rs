//! Routes of transparently proxied packets: nftables rules mark them, and the system delivers marked packets to this
//! machine (Linux, `Documentation/networking/tproxy.rst`).

use std::{
    io,
    process::{Command, Output},
};

use fairmesh_console::failure::Failure;

use super::{
    nft_command::not_permitted,
    nft_rules::MARK,
    port_and_network_args::{FAMILIES, Family},
};

/// Path of `ip`, for systems on which users do not have it in PATH.
const FALLBACK_PATH: &str = "/usr/sbin/ip";
/// Arguments of `ip`, line by line.
pub(super) fn steps(families: &[Family]) -> Vec<String> {
    let of_one = |Family { option, everywhere, .. }: &Family| {
        [
            format!("{option} rule add pref {MARK} fwmark {MARK} lookup {MARK}"),
            format!("{option} route replace local {everywhere} dev lo table {MARK}"),
        ]
    };
    families.iter().flat_map(of_one).collect()
}

/// Adds the routes of these families.
pub(super) fn add(families: &[Family]) -> Result<(), Failure> {
    for step in steps(families) {
        let output = run(&step).map_err(|error| missing(&error))?;
        // Repeating is harmless; connections in flight continue.
        let is_there = complaint(&output).contains("File exists");
        if !output.status.success() && !is_there {
            return Err(refused(&step, &output));
        }
    }
    Ok(())
}

/// Removes the routes of all other families; returns whether there were any.
pub(super) fn keep(families: &[Family]) -> Result<bool, Failure> {
    let others = FAMILIES.into_iter().filter(|family| !families.contains(family));
    others.map(remove_of).try_fold(false, |any, removed| Ok(removed? || any))
}

fn remove_of(Family { option, .. }: Family) -> Result<bool, Failure> {
    match run(&format!("{option} rule del pref {MARK} fwmark {MARK} lookup {MARK}")) {
        Ok(output) if output.status.success() => {}
        // No such route exists. nft has already reported a missing privilege.
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => output(FALLBACK_PATH),
        outcome => outcome,
    }
}

fn missing(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::failed_with(
            "there is no ip on this machine, which routes forwarded connections to the proxy",
            "install the package iproute2, or omit --from",
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
