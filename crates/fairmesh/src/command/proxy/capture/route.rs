//! Routes for packets that come here though they are meant for others: rules of nftables mark them, and the system delivers what
//! is marked to this machine (Linux, `Documentation/networking/tproxy.rst`).

use std::{
    io,
    process::{Command, Output},
};

use super::rules::MARK;
use crate::failure::Failure;

/// Where it is on machines whose users do not have it in their path.
const USUAL: &str = "/usr/sbin/ip";
/// Of addresses, as `ip` names them.
const FAMILIES: [&str; 2] = ["-4", "-6"];

/// What is carried out for one family of addresses: `-4` or `-6`.
fn steps(family: &str) -> [String; 2] {
    let everywhere = if family == "-4" { "0.0.0.0/0" } else { "::/0" };
    [
        format!("{family} rule add pref {MARK} fwmark {MARK} lookup {MARK}"),
        format!("{family} route replace local {everywhere} dev lo table {MARK}"),
    ]
}

/// The same as lines that a shell takes, as comments for nft.
pub(super) fn script(families: &[&str]) -> String {
    let lines = families.iter().flat_map(|family| steps(family)).map(|step| format!("# ip {step}\n"));
    lines.collect()
}

/// Has these families routed so, and no other.
pub(super) fn set_up(families: &[&str]) -> Result<(), Failure> {
    for family in FAMILIES.iter().filter(|family| !families.contains(family)) {
        remove_of(family)?;
    }
    for step in families.iter().flat_map(|family| steps(family)) {
        let output = run(&step).map_err(|error| missing(&error))?;
        // As it is when this is done once more; connections under way go on.
        let is_there = complaint(&output).contains("File exists");
        if !output.status.success() && !is_there {
            return Err(refused(&step, &output));
        }
    }
    Ok(())
}

/// Removes them; whether there were any.
pub(super) fn remove() -> Result<bool, Failure> {
    let removed = FAMILIES.map(remove_of);
    removed.into_iter().try_fold(false, |any, removed| Ok(removed? || any))
}

fn remove_of(family: &str) -> Result<bool, Failure> {
    match run(&format!("{family} rule del pref {MARK} fwmark {MARK} lookup {MARK}")) {
        Ok(output) if output.status.success() => {}
        // There is none. Who may not change them was told so by nft.
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(missing(&error)),
    }
    let step = format!("{family} route flush table {MARK}");
    let output = run(&step).map_err(|error| missing(&error))?;
    if output.status.success() { Ok(true) } else { Err(refused(&step, &output)) }
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
    Failure::failed_with(
        format!("'ip {step}' failed: {}", complaint(output)),
        "run it as root, on a kernel with CONFIG_IP_MULTIPLE_TABLES (and CONFIG_IPV6_MULTIPLE_TABLES)",
    )
}
