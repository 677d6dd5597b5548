use std::fs;

use tempfile::TempDir;

use super::*;

/// A temporary folder with fake kernel files.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Sets the machine's online cores, and the cores that a process may use.
    fn cores(&self, online: u32, pid: u32, allowed: &str) -> &Self {
        let lines: String = (0..online).map(|core| format!("cpu{core} 9 9 9\n")).collect();
        self.file("proc/stat", &format!("cpu  9 9 9\n{lines}intr 7 7\n"));
        self.file(&format!("proc/{pid}/status"), &format!("Name:\ta\nCpus_allowed_list:\t{allowed}\n"))
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds a process with its own CPU ticks, and those of its ended children.
    fn process(&self, (pid, parent): (u32, u32), ticks: u64, ended: u64, children: &str) -> &Self {
        let stat = format!("{pid} (a (b) c) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 1 {ended} 0 20 0 1 0");
        self.file(&format!("proc/{pid}/stat"), &stat);
        self.file(&format!("proc/{pid}/task/{pid}/children"), children)
    }

    fn mounted(&self, lines: &[(&str, &str, &str)]) -> &Self {
        let at = self.0.path().display();
        let lines = lines.iter().map(|(root, kind, options)| {
            format!(
                "30 23 0:28 {root} {at}/sys/{options} rw,relatime shared:1 - {kind} cgroup rw,{options}\n"
            )
        });
        self.file("proc/self/mountinfo", &lines.collect::<String>())
    }

    fn cpu(&self, pid: u32) -> Cpu {
        Cpu::within(self.0.path().join("proc"), pid)
    }
}

fn used(cpu: &Cpu) -> (u64, u32) {
    let time = cpu.read().unwrap();
    (time.used_us, time.epoch)
}

#[test]
fn cgroup_v2_usage_is_counted_and_smallest_ancestor_quota_applies() {
    let machine = Machine::new();
    machine
        .mounted(&[("/", "cgroup2", "v2")])
        .process((7, 1), 5, 0, "")
        .file("proc/7/cgroup", "0::/shop/cart\n")
        .file("sys/v2/shop/cart/cgroup.events", "populated 1\n")
        .file("sys/v2/shop/cart/cgroup.procs", "7\n")
        .file("sys/v2/shop/cart/cpu.stat", "usage_usec 123456\nuser_usec 100000\n")
        .file("sys/v2/shop/cart/cpu.max", "max 100000\n")
        .file("sys/v2/shop/cpu.max", "50000 100000\n");
    let time = machine.cpu(7).read().unwrap();
    assert_eq!((time.used_us, time.limit_millicores), (123_456, 500));
    machine.file("sys/v2/shop/cart/cpu.max", "25000 100000\n");
    assert_eq!(machine.cpu(7).read().unwrap().limit_millicores, 250);
}

#[test]
fn cgroup_v1_usage_is_in_nanoseconds_and_quota_in_another_controller() {
    let machine = Machine::new();
    machine
        .mounted(&[("/", "cgroup", "memory"), ("/", "cgroup", "cpuacct"), ("/", "cgroup", "cpu")])
        .process((7, 1), 5, 0, "")
        .file("proc/7/cgroup", "3:memory:/\n2:cpuacct:/cart\n1:cpu:/cart\n0::/\n")
        .file("sys/cpuacct/cart/cpuacct.usage", "5000000\n")
        .file("sys/cpuacct/cart/cgroup.procs", "7\n")
        .file("sys/cpu/cart/cpu.cfs_quota_us", "30000\n")
        .file("sys/cpu/cart/cpu.cfs_period_us", "100000\n")
        .file("sys/cpu/cpu.cfs_quota_us", "-1\n")
        .file("sys/cpu/cpu.cfs_period_us", "100000\n");
    let time = machine.cpu(7).read().unwrap();
    assert_eq!((time.used_us, time.limit_millicores), (5_000, 300));
}

#[test]
fn cgroup_cpu_quota_applies_even_if_usage_is_read_from_processes() {
    let machine = Machine::new();
    machine
        .mounted(&[("/", "cgroup", "cpuacct"), ("/", "cgroup", "cpu"), ("/", "cgroup2", "v2")])
        .cores(8, 7, "0-7")
        .process((7, 1), 5, 0, "")
        .process((9, 1), 1, 0, "")
        .file("proc/7/cgroup", "2:cpuacct:/\n1:cpu:/shop/cart\n0::/cart\n")
        .file("sys/cpuacct/release_agent", "\n")
        .file("sys/cpu/shop/cpu.cfs_quota_us", "150000\n")
        .file("sys/cpu/shop/cpu.cfs_period_us", "100000\n")
        .file("sys/cpu/shop/cart/cpu.cfs_quota_us", "-1\n")
        .file("sys/cpu/shop/cart/cpu.cfs_period_us", "100000\n");
    let cpu = machine.cpu(7);
    let time = cpu.read().unwrap();
    assert_eq!(
        (time.used_us, time.limit_millicores),
        (60_000, 1500),
        "one and a half cores are not rounded to one"
    );
    assert_eq!(
        cpu.how().split(": ").next(),
        Some("its processes, against the quota of 1500 thousandths of a core")
    );

    machine.file("sys/v2/cart/cgroup.events", "").file("sys/v2/cart/cpu.stat", "usage_usec 77\n");
    let time = machine.cpu(7).read().unwrap();
    assert_eq!((time.used_us, time.limit_millicores), (77, 1500), "version 2 counts, version 1 limits");

    machine.file("sys/v2/cart/cgroup.procs", "7\n9\n").file("sys/v2/cart/cpu.max", "50000 100000\n");
    let time = machine.cpu(7).read().unwrap();
    assert_eq!((time.used_us, time.limit_millicores), (60_000, 500), "shared, and held to the least of both");
}

#[test]
fn own_cgroup_is_found_in_container_without_cgroup_namespace() {
    let machine = Machine::new();
    machine
        .mounted(&[("/docker/abc", "cgroup", "cpuacct")])
        .process((7, 1), 5, 0, "")
        .file("proc/7/cgroup", "2:cpuacct:/docker/abc\n")
        .file("sys/cpuacct/cpuacct.usage", "7000\n")
        .file("sys/cpuacct/cgroup.procs", "7\n");
    assert_eq!(machine.cpu(7).read().unwrap().used_us, 7);
}

#[test]
fn cpu_usage_is_not_read_from_root_cgroup() {
    let machine = Machine::new();
    machine
        .mounted(&[("/", "cgroup", "cpuacct"), ("/", "cgroup2", "v2")])
        .process((7, 1), 5, 0, "")
        .file("proc/7/cgroup", "2:cpuacct:/\n0::/\n")
        .file("sys/cpuacct/cpuacct.usage", "999000000\n")
        .file("sys/cpuacct/release_agent", "\n")
        .cores(4, 7, "0,2-7")
        .file("sys/v2/cpu.stat", "usage_usec 999000\n");
    let time = machine.cpu(7).read().unwrap();
    assert_eq!(time.used_us, 60_000, "five ticks of user time and one of the system's");
    assert_eq!(
        time.limit_millicores, 3000,
        "of eight possible cores four are there, and it may not use one of them"
    );
}

#[test]
fn cpu_usage_is_never_read_again_from_cgroup_shared_with_others() {
    let machine = Machine::new();
    machine
        .mounted(&[("/", "cgroup2", "v2")])
        .process((1, 0), 0, 0, "")
        .process((7, 1), 5, 0, "8")
        .process((8, 7), 1, 0, "")
        .process((9, 1), 1, 0, "")
        .file("proc/7/cgroup", "0::/pod\n")
        .file("sys/v2/pod/cgroup.events", "")
        .file("sys/v2/pod/cpu.stat", "usage_usec 500\n")
        .file("sys/v2/pod/cgroup.procs", "1\n7\n8\n77\n");
    let cpu = machine.cpu(7);
    assert_eq!(used(&cpu), (500, 1), "the parent, the child and the ended process are related");
    assert_eq!(used(&cpu), (500, 1));
    assert!(cpu.how().ends_with("pod (v2)"), "{}", cpu.how());
    machine.file("sys/v2/pod/cgroup.procs", "1\n7\n8\n9\n");
    assert_eq!(used(&cpu), (80_000, 2));
    assert!(
        cpu.how().starts_with("its processes") && cpu.how().ends_with("other programs run in its cgroup")
    );
    machine.file("sys/v2/pod/cgroup.procs", "1\n7\n8\n");
    assert_eq!(used(&cpu), (80_000, 2));
}

#[test]
fn cpu_usage_of_process_tree_includes_ended_children() {
    let machine = Machine::new();
    machine.mounted(&[]).file("proc/7/cgroup", "").process((7, 1), 9, 0, "8").process((8, 7), 19, 0, "");
    let cpu = machine.cpu(7);
    assert_eq!(used(&cpu).0, 300_000);
    // The parent has waited for the ended process.
    fs::remove_dir_all(machine.0.path().join("proc/8")).unwrap();
    machine.process((7, 1), 9, 20, "");
    assert_eq!(used(&cpu).0, 300_000);
    fs::remove_dir_all(machine.0.path().join("proc/7")).unwrap();
    assert_eq!(cpu.read(), None);
}

#[test]
fn cpu_usage_of_test_process_is_measured_on_real_system() {
    let cpu = Cpu::of_this_program();
    let before = cpu.read().unwrap();
    let spent = || {
        let mut word = 1u64;
        for step in 0..30_000_000u64 {
            word = std::hint::black_box(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step));
        }
        word
    };
    // At least one clock tick must pass, however fast the machine is.
    let mut rounds = 0;
    let mut after = before;
    while after.used_us == before.used_us && rounds < 200 {
        std::hint::black_box(spent());
        after = cpu.read().unwrap();
        rounds += 1;
    }
    assert!(after.used_us > before.used_us);
    assert!(after.limit_millicores >= 1);
}

#[test]
fn cpu_of_counter_has_its_value_and_given_limit() {
    let counter = Arc::new(AtomicU64::new(5));
    let cpu = Cpu::of_counter(Arc::clone(&counter), 2_500);
    let before = cpu.read().unwrap();
    counter.store(7_000, Relaxed);
    let after = cpu.read().unwrap();
    assert_eq!((before.used_us, after.used_us, after.limit_millicores), (5, 7_000, 2_500));
    assert_eq!(before.epoch, after.epoch);
}

#[test]
fn cpu_of_program_behind_this_process_is_found_by_its_listener_and_after_its_restart() {
    let (machine, own) = (Machine::new(), std::process::id());
    let here = u32::from_ne_bytes([127, 0, 0, 1]);
    let line = format!("0: {here:08X}:2328 00000000:0000 0A 0:0 00:0 0 998 0 1705 1 0\n");
    let runs = |pid: u32, ticks: u64| {
        machine.process((pid, 1), ticks, 0, "").file(&format!("proc/{pid}/cgroup"), "");
        let files = machine.0.path().join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&files).unwrap();
        std::os::unix::fs::symlink("socket:[1705]", files.join("3")).unwrap();
    };
    machine.mounted(&[]).file("proc/self/net/tcp", &line);
    machine.process((own, 1), 900, 0, "").file(&format!("proc/{own}/cgroup"), "");
    runs(7, 5);
    let cpu = machine.cpu(own);
    let behind = || Some(Behind { address: "127.0.0.1:9000".parse().unwrap(), looked_at: None, misses: 0 });
    cpu.reader().behind = behind();
    assert_eq!(used(&cpu), (60_000, 1), "not that of this process");
    fs::remove_dir_all(machine.0.path().join("proc/7")).unwrap();
    runs(8, 2);
    assert_eq!(cpu.read(), None, "it is looked for every ten seconds");
    cpu.reader().behind = behind();
    assert_eq!(used(&cpu), (30_000, 2));
    fs::remove_dir_all(machine.0.path().join("proc/8")).unwrap();
    cpu.reader().behind = behind();
    assert_eq!(used(&cpu), (9_010_000, 3), "this process, when none is found");
}
