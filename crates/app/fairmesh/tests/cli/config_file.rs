//! Processes that read their options from a file.

use std::process::{Command, Stdio};

use super::support::{Mesh, fairmesh, wait_until};

#[test]
fn control_plane_and_agent_run_with_config_files() {
    let mesh = Mesh::empty();
    let control = mesh.file(
        "control.yaml",
        &format!(
            "# Options of 'fairmesh control'.\ndata-dir: {}\ngrpc: [{}]\nadmin: 127.0.0.1:0\ntrust-domain: none\n",
            mesh.path("data").display(),
            mesh.address()
        ),
    );
    let agent_socket = format!("unix:{}", mesh.path("agent.sock").display());
    let agent = mesh.file(
        "agent.yaml",
        &format!(
            "region: eu\nadmin: none\ncontrol: {}\nlisten: {agent_socket}\nstate-dir: {}\n",
            mesh.address(),
            mesh.path("agent").display()
        ),
    );
    let start = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(args)
            .env_clear()
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children =
        [start(&["control", "--config", &control]), start(&["agent", "--config", &agent, "--region", "us"])];
    wait_until("both are ready", || {
        mesh.run(&["wait", "control", "agent", "--agent", &agent_socket, "--timeout", "1s"]).code == Some(0)
    });
    mesh.apply("kind: Service\nname: shop/web\n").ok();
    // The command line takes precedence over the file.
    let explained = mesh.run(&["explain", "shop/web", "--agent", &agent_socket]);
    assert!(explained.err.contains("in region us"), "{explained:?}");
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[test]
fn config_file_with_mistake_is_refused_before_start() {
    let mesh = Mesh::empty();
    let file = |text: &str| mesh.file("wrong.yaml", text);
    let refused =
        |text: &str| fairmesh("unix:/nobody.sock", &["agent", "--config", &file(text)], "").fails(2);
    assert!(refused("regoin: eu\n").contains("there is no option 'regoin' of 'fairmesh agent'"));
    assert!(refused("region: 'e u'\n").contains("--region"));
    assert!(refused("region: eu\nadmin: 12\n").contains("--admin"));
    let missing = fairmesh("unix:/nobody.sock", &["agent", "--config", "/nowhere.yaml"], "").fails(2);
    assert!(missing.contains("cannot read /nowhere.yaml"), "{missing}");
}

#[test]
fn old_option_name_draws_warning_in_arguments_and_files() {
    let mesh = Mesh::empty();
    // Other options are invalid too, so that the command is refused before it runs.
    let told = |args: &[&str]| fairmesh("unix:/nobody.sock", args, "").fails(2);
    let warning = "the option --metrics is --admin now";
    let by_hand = told(&["agent", "--region", "e u", "--metrics", "none", "--metrics=none"]);
    assert_eq!(by_hand.matches(warning).count(), 1, "{by_hand}");
    let file = mesh.file("old.yaml", "region: 'e u'\nmetrics: none\n");
    let by_file = told(&["agent", "--config", &file]);
    assert_eq!(by_file.matches(warning).count(), 1, "{by_file}");
    assert!(!told(&["agent", "--region", "e u", "--admin", "none"]).contains(warning));
}
