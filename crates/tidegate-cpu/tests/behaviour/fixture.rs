//! What the tests play on: directories with the files of a kernel, processes that are busy, and the real thing where it is there.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tidegate_core::budget::Rate;
use tidegate_cpu::cgroups::{CgroupVersion, FilesystemRoots, Hierarchy};
use tidegate_cpu::meter::cores;
use tidegate_cpu::processes::{ProcFs, ProcStat, ProcessState};

/// Longer than anything takes, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before looking again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A directory that is removed with this value.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-cpu-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("there is room for a directory");
        Folder { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.path);
    }
}

/// A directory with the files of a kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    folder: Folder,
    pub(crate) roots: FilesystemRoots,
}

impl Kernel {
    /// One with two cores and no cgroups. The governor and the first process are there.
    pub(crate) fn bare() -> Kernel {
        let folder = Folder::new();
        let roots =
            FilesystemRoots { proc: folder.path().join("proc"), cgroup: folder.path().join("cgroup") };
        let kernel = Kernel { folder, roots };
        kernel.put("proc/stat", "cpu  100 20 30 9000 50 4 6 700 11 1\ncpu0 1\ncpu1 1\nintr 1 2 3\n");
        kernel.put("proc/uptime", "5000.25 9000.00\n");
        kernel.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n");
        kernel.process(1, "init", 0, 1, "/init.scope");
        kernel.process(std::process::id(), "tidegate", 1, 2, "/governor");
        kernel
    }

    /// One with cgroups of version 2.
    pub(crate) fn two() -> Kernel {
        let kernel = Kernel::bare();
        kernel.put("cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        kernel.put("cgroup/cgroup.subtree_control", "cpu\n");
        kernel.put("cgroup/cgroup.procs", "");
        for name in ["init.scope", "governor"] {
            kernel.cgroup_two(name);
        }
        kernel
    }

    /// One with cgroups of version 1, in these directories.
    pub(crate) fn one(limits: &str, counts: &str) -> Kernel {
        let kernel = Kernel::bare();
        kernel.put(&format!("cgroup/{limits}/cpu.shares"), "1024\n");
        kernel.put(&format!("cgroup/{limits}/cgroup.procs"), "");
        kernel.put(&format!("cgroup/{counts}/cpuacct.usage"), "1\n");
        kernel.put(&format!("cgroup/{counts}/cgroup.procs"), "");
        for (pid, name) in [(1, "init.scope"), (std::process::id(), "governor")] {
            let lines = if limits == counts {
                format!("4:cpu,cpuacct:/{name}\n0::/\n")
            } else {
                format!("2:cpuacct:/{name}\n1:cpu:/{name}\n0::/\n")
            };
            kernel.put(&format!("proc/{pid}/cgroup"), &lines);
        }
        kernel
    }

    pub(crate) fn cgroup_two(&self, name: &str) {
        self.put(&format!("cgroup/{name}/cgroup.procs"), "");
        self.put(&format!("cgroup/{name}/cpu.max"), "max 100000\n");
        self.put(&format!("cgroup/{name}/cpu.max.burst"), "0\n");
        self.put(&format!("cgroup/{name}/cpu.stat"), "usage_usec 0\nuser_usec 0\nsystem_usec 0\n");
    }

    pub(crate) fn process(&self, pid: u32, name: &str, parent: u32, started: u64, cgroup: &str) {
        self.put(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.stat(pid, &CounterId { name, parent, started, session: pid, ..CounterId::default() });
    }

    pub(crate) fn stat(&self, pid: u32, life: &CounterId<'_>) {
        let CounterId { name, doing, parent, session, flags, own, reaped, started } = life;
        let line = format!(
            "{pid} ({name}) {doing} {parent} {pid} {session} 0 -1 {flags} 0 0 0 0 {own} 0 {reaped} 0 20 0 1 0 {started} 0 0\n"
        );
        self.put(&format!("proc/{pid}/stat"), &line);
    }

    pub(crate) fn ended(&self, pid: u32) {
        fs::remove_dir_all(self.folder.path().join(format!("proc/{pid}"))).expect("it was there");
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is below the directory")).expect("there is room");
        fs::write(path, content).expect("there is room");
    }

    pub(crate) fn get(&self, name: &str) -> String {
        let text = fs::read_to_string(self.folder.path().join(name)).expect("it is there");
        text.trim().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// What a directory says of a process.
#[derive(Debug)]
pub(crate) struct CounterId<'a> {
    pub(crate) name: &'a str,
    pub(crate) doing: char,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    pub(crate) flags: u64,
    pub(crate) own: u64,
    pub(crate) reaped: u64,
    pub(crate) started: u64,
}

impl Default for CounterId<'_> {
    fn default() -> Self {
        CounterId { name: "a", doing: 'S', parent: 1, session: 1, flags: 0, own: 0, reaped: 0, started: 1 }
    }
}

/// A process with its children, in a group of their own. It ends with this value.
#[derive(Debug)]
pub(crate) struct Troop {
    child: Child,
}

impl Troop {
    /// Runs a script.
    pub(crate) fn run(script: &str) -> Troop {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        Troop { child: command.spawn().expect("there is a shell") }
    }

    /// So many that do nothing but use their cores, the first one included.
    pub(crate) fn busy(count: u32) -> Troop {
        let others = "( while :; do :; done ) & ".repeat(count.saturating_sub(1) as usize);
        let troop = Troop::run(&format!("{others} while :; do :; done"));
        eventually("all are there", || troop.members().len() >= count as usize);
        troop
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All of the group who have not ended.
    pub(crate) fn members(&self) -> Vec<ProcStat> {
        let proc = real_proc();
        let pids = proc.all().expect("processes can be listed");
        let stats = pids.into_iter().filter_map(|pid| proc.stat(pid).expect("it can be read"));
        stats.filter(|stat| stat.state != ProcessState::Ended && stat.group == self.pid()).collect()
    }

    /// How many of its members are stopped.
    pub(crate) fn stopped(&self) -> usize {
        self.members().iter().filter(|stat| stat.state == ProcessState::Stopped).count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }
}

impl Drop for Troop {
    fn drop(&mut self) {
        let _killed = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ended = self.child.wait();
    }
}

pub(crate) fn real_proc() -> ProcFs {
    ProcFs::at(&FilesystemRoots::default().proc)
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it did not become so: {what}");
        thread::park_timeout(BETWEEN_LOOKS);
    }
}

/// Lets so much time pass, for others to use it.
pub(crate) fn pass(time: Duration) {
    let began = now();
    while began.elapsed() < time {
        thread::park_timeout(time.saturating_sub(began.elapsed()));
    }
}

#[expect(clippy::disallowed_methods, reason = "what others use in a time is the question")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A part of the machine, in percent of so many cores.
pub(crate) fn percent_of(busy: u32, percent: u32) -> Rate {
    Rate::from_billionths(u64::from(percent) * 1_000_000_000 * u64::from(busy) / u64::from(cores()))
}

/// How much of so many cores was used, in percent.
pub(crate) fn percent(used: Duration, passed: Duration, busy: u32) -> u128 {
    used.as_nanos() * 100 / (passed.as_nanos() * u128::from(busy)).max(1)
}

/// Cgroups of this machine in which limits can be put; `None`, with the reason told, where there are none.
pub(crate) fn real_cgroups() -> Option<(FilesystemRoots, Hierarchy)> {
    let roots = FilesystemRoots::default();
    let reason = match Hierarchy::find(&roots) {
        Err(error) => error.to_string(),
        Ok(hierarchy) => {
            let probe = hierarchy.limits.join(format!(
                "tidegate-probe-{}-{:?}",
                std::process::id(),
                thread::current().id()
            ));
            match fs::create_dir(&probe) {
                Ok(()) => {
                    let has_cpu = probe.join("cpu.max").exists() || probe.join("cpu.cfs_quota_us").exists();
                    fs::remove_dir(&probe).expect("it is empty");
                    // In version 2 the controller is enabled by whoever needs it.
                    if has_cpu || hierarchy.version == CgroupVersion::Two {
                        return Some((roots, hierarchy));
                    }
                    "this kernel has no quotas".to_owned()
                }
                Err(error) => format!("{}: {error}", probe.display()),
            }
        }
    };
    passed_over(&format!("there are no cgroups to be limited here: {reason}"));
    None
}

/// Tells whoever looks why a test had nothing to do.
#[expect(clippy::print_stdout, reason = "tests are told of by their output")]
pub(crate) fn passed_over(reason: &str) {
    println!("passed over, {reason}");
}

/// A cgroup of this machine, in both trees. It is removed with this value, and whoever is in it goes to the root.
#[derive(Debug)]
pub(crate) struct RealCgroup {
    hierarchy: Hierarchy,
    pub(crate) name: String,
}

impl RealCgroup {
    pub(crate) fn new(hierarchy: &Hierarchy, name: &str) -> RealCgroup {
        let name = format!("tidegate-test-{}-{name}", std::process::id());
        let cgroup = RealCgroup { hierarchy: hierarchy.clone(), name };
        for folder in cgroup.folders() {
            fs::create_dir(folder).expect("it can be made");
        }
        cgroup
    }

    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let mut folders =
            vec![self.hierarchy.limits.join(&self.name), self.hierarchy.counts.join(&self.name)];
        folders.dedup();
        folders
    }

    pub(crate) fn limits(&self) -> PathBuf {
        self.hierarchy.limits.join(&self.name)
    }

    pub(crate) fn take(&self, troop: &Troop) {
        for stat in troop.members() {
            for folder in self.folders() {
                let moved = fs::write(folder.join("cgroup.procs"), stat.process.pid.to_string());
                let is_gone = real_proc().stat_of(stat.process).expect("it can be read").is_none();
                assert!(moved.is_ok() || is_gone, "{moved:?}");
            }
        }
    }

    /// What the files with its limit say.
    pub(crate) fn limit(&self) -> Vec<String> {
        let files = ["cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"];
        files.iter().filter_map(|file| fs::read_to_string(self.limits().join(file)).ok()).collect()
    }
}

impl Drop for RealCgroup {
    fn drop(&mut self) {
        for (folder, root) in self.folders().iter().zip([&self.hierarchy.limits, &self.hierarchy.counts]) {
            for _ in 0..100 {
                let Ok(pids) = fs::read_to_string(folder.join("cgroup.procs")) else { break };
                for pid in pids.lines() {
                    let _moved: io::Result<()> = fs::write(root.join("cgroup.procs"), pid);
                }
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                thread::park_timeout(BETWEEN_LOOKS);
            }
        }
    }
}
