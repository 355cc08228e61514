//! Fixtures: directories with fake kernel files, groups of busy processes, and the cgroups of this machine.

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
use tidegate_testkit::skip;

/// The timeout of [`wait_until`], long enough for a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// The polling interval of [`wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A temporary directory. It is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct TempFolder {
    path: PathBuf,
}

impl TempFolder {
    pub(crate) fn new() -> TempFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-cpu-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the directory can be created");
        TempFolder { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.path);
    }
}

/// A directory with fake files of `/proc` and `/sys/fs/cgroup`.
#[derive(Debug)]
pub(crate) struct FakeKernel {
    folder: TempFolder,
    pub(crate) roots: FilesystemRoots,
}

impl FakeKernel {
    /// Two cores, no cgroups, and two processes: init and the governor.
    pub(crate) fn without_cgroups() -> FakeKernel {
        let folder = TempFolder::new();
        let roots =
            FilesystemRoots { proc: folder.path().join("proc"), cgroup: folder.path().join("cgroup") };
        let kernel = FakeKernel { folder, roots };
        kernel.write_file("proc/stat", "cpu  100 20 30 9000 50 4 6 700 11 1\ncpu0 1\ncpu1 1\nintr 1 2 3\n");
        kernel.write_file("proc/uptime", "5000.25 9000.00\n");
        kernel.write_file("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n");
        kernel.add_process(1, "init", 0, 1, "/init.scope");
        kernel.add_process(std::process::id(), "tidegate", 1, 2, "/governor");
        kernel
    }

    /// Adds cgroups of version 2.
    pub(crate) fn with_cgroup_v2() -> FakeKernel {
        let kernel = FakeKernel::without_cgroups();
        kernel.write_file("cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        kernel.write_file("cgroup/cgroup.subtree_control", "cpu\n");
        kernel.write_file("cgroup/cgroup.procs", "");
        for name in ["init.scope", "governor"] {
            kernel.add_cgroup(name);
        }
        kernel
    }

    /// Adds cgroups of version 1 in these directories.
    pub(crate) fn with_cgroup_v1(limits: &str, counts: &str) -> FakeKernel {
        let kernel = FakeKernel::without_cgroups();
        kernel.write_file(&format!("cgroup/{limits}/cpu.shares"), "1024\n");
        kernel.write_file(&format!("cgroup/{limits}/cgroup.procs"), "");
        kernel.write_file(&format!("cgroup/{counts}/cpuacct.usage"), "1\n");
        kernel.write_file(&format!("cgroup/{counts}/cgroup.procs"), "");
        for (pid, name) in [(1, "init.scope"), (std::process::id(), "governor")] {
            let lines = if limits == counts {
                format!("4:cpu,cpuacct:/{name}\n0::/\n")
            } else {
                format!("2:cpuacct:/{name}\n1:cpu:/{name}\n0::/\n")
            };
            kernel.write_file(&format!("proc/{pid}/cgroup"), &lines);
        }
        kernel
    }

    pub(crate) fn add_cgroup(&self, name: &str) {
        self.write_file(&format!("cgroup/{name}/cgroup.procs"), "");
        self.write_file(&format!("cgroup/{name}/cpu.max"), "max 100000\n");
        self.write_file(&format!("cgroup/{name}/cpu.max.burst"), "0\n");
        self.write_file(&format!("cgroup/{name}/cpu.stat"), "usage_usec 0\nuser_usec 0\nsystem_usec 0\n");
    }

    pub(crate) fn add_process(&self, pid: u32, name: &str, parent: u32, started: u64, cgroup: &str) {
        self.write_file(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.write_stat(pid, &FakeStat { name, parent, started, session: pid, ..FakeStat::default() });
    }

    pub(crate) fn write_stat(&self, pid: u32, stat: &FakeStat<'_>) {
        let FakeStat { name, doing, parent, session, flags, own, reaped, started } = stat;
        let line = format!(
            "{pid} ({name}) {doing} {parent} {pid} {session} 0 -1 {flags} 0 0 0 0 {own} 0 {reaped} 0 20 0 1 0 {started} 0 0\n"
        );
        self.write_file(&format!("proc/{pid}/stat"), &line);
    }

    pub(crate) fn remove_process(&self, pid: u32) {
        fs::remove_dir_all(self.folder.path().join(format!("proc/{pid}"))).expect("it was there");
    }

    pub(crate) fn write_file(&self, name: &str, content: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is below the directory")).expect("there is room");
        fs::write(path, content).expect("there is room");
    }

    pub(crate) fn read_file(&self, name: &str) -> String {
        let text = fs::read_to_string(self.folder.path().join(name)).expect("it is there");
        text.trim().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The fields of `/proc/PID/stat`.
#[derive(Debug)]
pub(crate) struct FakeStat<'a> {
    pub(crate) name: &'a str,
    pub(crate) doing: char,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    pub(crate) flags: u64,
    pub(crate) own: u64,
    pub(crate) reaped: u64,
    pub(crate) started: u64,
}

impl Default for FakeStat<'_> {
    fn default() -> Self {
        FakeStat { name: "a", doing: 'S', parent: 1, session: 1, flags: 0, own: 0, reaped: 0, started: 1 }
    }
}

/// A process and its children in a process group. The group is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    child: Child,
}

impl ProcessGroup {
    /// Starts a shell script.
    pub(crate) fn spawn(script: &str) -> ProcessGroup {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        ProcessGroup { child: command.spawn().expect("there is a shell") }
    }

    /// Starts `count` processes that each use one core.
    pub(crate) fn spawn_busy(count: u32) -> ProcessGroup {
        let others = "( while :; do :; done ) & ".repeat(count.saturating_sub(1) as usize);
        let group = ProcessGroup::spawn(&format!("{others} while :; do :; done"));
        wait_until("all are there", || group.members().len() >= count as usize);
        group
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The living processes of the group.
    pub(crate) fn members(&self) -> Vec<ProcStat> {
        let proc = real_proc();
        let pids = proc.all().expect("processes can be listed");
        let stats = pids.into_iter().filter_map(|pid| proc.stat(pid).expect("it can be read"));
        stats.filter(|stat| stat.state != ProcessState::Ended && stat.group == self.pid()).collect()
    }

    /// The number of stopped processes.
    pub(crate) fn stopped_count(&self) -> usize {
        self.members().iter().filter(|stat| stat.state == ProcessState::Stopped).count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let _killed = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ended = self.child.wait();
    }
}

pub(crate) fn real_proc() -> ProcFs {
    ProcFs::at(&FilesystemRoots::default().proc)
}

/// Waits until a condition is met. Panics after a timeout.
#[track_caller]
pub(crate) fn wait_until(condition: &str, mut is_met: impl FnMut() -> bool) {
    let began = now();
    while !is_met() {
        assert!(began.elapsed() < WAIT_TIMEOUT, "timeout while waiting until {condition}");
        thread::park_timeout(POLL_INTERVAL);
    }
}

/// Blocks this thread while other processes run.
pub(crate) fn let_time_pass(time: Duration) {
    let began = now();
    while began.elapsed() < time {
        thread::park_timeout(time.saturating_sub(began.elapsed()));
    }
}

#[expect(clippy::disallowed_methods, reason = "the test measures CPU usage in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The rate of the machine that equals `percent` of `busy` cores.
pub(crate) fn rate_of_cores(busy: u32, percent: u32) -> Rate {
    Rate::from_billionths(u64::from(percent) * 1_000_000_000 * u64::from(busy) / u64::from(cores()))
}

/// The usage of `busy` cores in percent.
pub(crate) fn percent_used(used: Duration, passed: Duration, busy: u32) -> u128 {
    used.as_nanos() * 100 / (passed.as_nanos() * u128::from(busy)).max(1)
}

/// The writable cgroup hierarchy of this machine. Records a skipped test and returns `None` if there is none.
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
                    // In version 2 the enforcer enables the controller.
                    if has_cpu || hierarchy.version == CgroupVersion::Two {
                        return Some((roots, hierarchy));
                    }
                    "this kernel has no quotas".to_owned()
                }
                Err(error) => format!("{}: {error}", probe.display()),
            }
        }
    };
    skip(&format!("no writable cgroup hierarchy: {reason}"));
    None
}

/// A cgroup of this machine, in both trees of version 1. When dropped, it moves its processes to the root and is removed.
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

    pub(crate) fn limit_folder(&self) -> PathBuf {
        self.hierarchy.limits.join(&self.name)
    }

    pub(crate) fn add_group(&self, group: &ProcessGroup) {
        for stat in group.members() {
            for folder in self.folders() {
                let moved = fs::write(folder.join("cgroup.procs"), stat.process.pid.to_string());
                let is_gone = real_proc().stat_of(stat.process).expect("it can be read").is_none();
                assert!(moved.is_ok() || is_gone, "{moved:?}");
            }
        }
    }

    /// The contents of the files with the limit.
    pub(crate) fn read_limit_files(&self) -> Vec<String> {
        let files = ["cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"];
        files.iter().filter_map(|file| fs::read_to_string(self.limit_folder().join(file)).ok()).collect()
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
                thread::park_timeout(POLL_INTERVAL);
            }
        }
    }
}
