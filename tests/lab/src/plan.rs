//! Steps of `make lab`, `make lab-stock` and the like, and their machines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use exoprobe_lab::job::{Job, RESULTS, Step};
use exoprobe_tests::harness::{
    LACKS_ENV, NO_APT, NO_CGROUP, NO_DEBIAN_IMAGE, NO_DEBUG_INFO, NO_FUSE, NO_HUGE_PAGES,
    NO_IPROUTE2, NO_LANDLOCK, NO_NAMESPACES, NO_PASST, NO_PERF, NO_PYTHON, NO_SHELL, NO_STUNNEL,
    NO_SYSTEMD, NO_SYSTEMD_ANALYZE, NO_TRACE_CMD, NO_USER_NAMESPACES, PART_ENV, PROGRESS_ENV,
    REPORT_ENV,
};
use exoprobe_tests::{DEBIAN_DISK_ENV, GUEST_ENV, STRESS_SECONDS_ENV};

use crate::artifacts::{self, HostKernel, INIT, Program};
use crate::error::LabError;
use crate::image::Contents;
use crate::machine::{
    AMD, INTEL, INTEL_DEBIAN, INTEL_LARGE, INTEL_SMP, INTEL_STOPS, INTEL_TOUCHED, Machine,
};

/// The user's choice of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plan {
    /// All tests, and the counts twice, on kvm_intel
    Intel,
    /// On kvm_intel with two CPUs: changes under load, the stress test, how two vCPUs scale
    Smp,
    /// All tests that Bochs can run on kvm_amd, and the counts twice
    Amd,
    /// Debian's cloud kernel as the guest, on kvm_intel
    Stock,
    /// Each kernel that Debian 12 has for x86-64 as the guest, on kvm_intel
    Kernels,
    /// Debian with its own disk, kernel and initramfs as the guest, on kvm_intel
    Debian,
    /// The cost of a request to a disk in exoprobe and in Debian's QEMU, on kvm_intel
    DiskSpeed,
    /// How long 500 probes stop guests with 32 MiB to 64 GiB of RAM, by the guests' own clock, on
    /// kvm_intel with three CPUs; takes 12 GiB
    Stops,
}

/// Guests of the tests of a machine, besides the tiny ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guests {
    /// None.
    Tiny,
    /// [`STOCK_SUITE`]'s, with the kernel of this package.
    Stock(&'static str),
    /// That of [`DEBIAN_SUITE`], in place of the tiny ones.
    Debian,
}

/// One machine from power-on to its end.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
    /// Of its folder, and before each line of its output.
    pub(crate) name: String,
    pub(crate) job: Job,
    pub(crate) guests: Guests,
    /// Seconds that it takes on a CPU of its own, about: the longest starts first.
    pub(crate) seconds: u32,
}

impl Run {
    /// The same, without the tests that run on this host as well: cases with two vCPUs that are run
    /// with one here, and loads of the service. Counts take less time, and not the kernel that is
    /// built for them alone.
    pub(crate) fn once(mut self) -> Self {
        for step in &mut self.job.steps {
            step.env.insert(LACKS_ENV.to_owned(), self.plan.lacks(true));
            if !step.collect.is_empty() {
                step.args.extend(ONCE_COUNTS.map(str::to_owned));
            }
        }
        self
    }
}

/// The suite that only [`Plan::Stock`] runs, for it needs a kernel and minutes of its own.
pub(crate) const STOCK_SUITE: &str = "stock::";
/// The suite that only [`Plan::Debian`] runs.
const DEBIAN_SUITE: &str = "debian::";
/// The disk of [`Guests::Debian`], in the lab.
const DEBIAN_DISK: &str = "/dev/sda";
/// The package of Debian's kernel for virtual machines, of the version that apt offers.
const CLOUD_KERNEL: &str = "linux-image-cloud-amd64";
/// The packages of all kernels that Debian 12 has for x86-64, with the names of their machines.
const KERNELS: [(&str, &str); 6] = [
    ("-6.1", "linux-image-amd64"),
    ("-6.1-cloud", CLOUD_KERNEL),
    ("-6.1-rt", "linux-image-rt-amd64"),
    ("-6.12", "linux-image-6.12-amd64"),
    ("-6.12-cloud", "linux-image-6.12-cloud-amd64"),
    ("-6.12-rt", "linux-image-6.12-rt-amd64"),
];
/// The suites that [`Plan::Smp`] is for.
const SMP_SUITES: [&str; 3] = ["smp::", "cpus::", "stress::"];
/// Of the machine's time, which is some fifteen times as long in ours.
const STRESS_SECONDS: &str = "1";
/// [`Run::seconds`] of the counts.
const COUNTS_SECONDS: u32 = 30;
/// Guests of [`Plan::Stops`], for how many milliseconds each looks at its clock, and how often
/// probes come and go meanwhile.
const STOPS: [&str; 3] = ["32:32 64:64:16 1024:512 2048:0:2:10000 16384:0 65536:0", "10000", "1"];
/// The same of its second machine: a search of 8 GiB takes 7 s of the lab's time.
const STOPS_TOUCHED: [&str; 3] = ["16384:8192", "20000", "1"];
/// Variables of the environment for these.
const STOPS_ENV: [&str; 3] =
    ["EXOPROBE_BENCH_SIZES", "EXOPROBE_BENCH_LOOP_MS", "EXOPROBE_BENCH_ROUNDS"];
/// File that the counts go to.
pub(crate) const COUNTS_FILE: &str = "counts.json";
/// Why a test is left out that this host has run.
const ONCE: &str = "it runs on the host (--once)";
/// Arguments of counts that are compared with themselves only.
const ONCE_COUNTS: [&str; 1] = ["--quick"];
/// Programs of the tests and of the counts.
const PROGRAMS: [Program; 5] = [
    Program { kind: "bin", name: "exoprobe" },
    Program { kind: "bin", name: "embed" },
    Program { kind: "bin", name: "count_getpid" },
    Program { kind: "test", name: "integration" },
    Program { kind: "bench", name: "counts" },
];
/// The folder of QEMU, in the lab.
const QEMU: &str = "qemu";
/// The end-to-end tests, in the lab.
const TESTS: &str = "/bin/integration";

impl Plan {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Intel => "intel",
            Self::Smp => "smp",
            Self::Amd => "amd",
            Self::Stock => "stock",
            Self::Kernels => "kernels",
            Self::Debian => "debian",
            Self::DiskSpeed => "disk-speed",
            Self::Stops => "stops",
        }
    }

    pub(crate) fn machine(self) -> &'static Machine {
        match self {
            Self::Intel => &INTEL,
            Self::Smp => &INTEL_SMP,
            Self::Amd => &AMD,
            Self::Stock | Self::Kernels | Self::DiskSpeed => &INTEL_LARGE,
            Self::Debian => &INTEL_DEBIAN,
            Self::Stops => &INTEL_STOPS,
        }
    }

    /// The machines to start, which need not wait for each other; with a `filter`, one for the
    /// tests whose names contain it.
    pub(crate) fn runs(self, filter: Option<&str>) -> Vec<Run> {
        let plan = self;
        let run = |name: &str, steps| {
            let name = format!("{}{name}", plan.name());
            let (machine, seconds) = (*plan.machine(), plan.seconds());
            Run { plan, machine, name, job: Job { steps }, guests: Guests::Tiny, seconds }
        };
        if let Some(filter) = filter {
            return vec![run("", vec![self.tests("tests", Some(filter))])];
        }
        match self {
            Self::Stock => {
                let tests = run("", vec![self.tests("tests", Some(STOCK_SUITE))]);
                vec![Run { guests: Guests::Stock(CLOUD_KERNEL), ..tests }]
            }
            Self::Debian => {
                let mut tests = self.tests("tests", Some(DEBIAN_SUITE));
                tests.env.insert(DEBIAN_DISK_ENV.to_owned(), DEBIAN_DISK.to_owned());
                vec![Run { guests: Guests::Debian, ..run("", vec![tests]) }]
            }
            Self::DiskSpeed => vec![run("", vec![self.disk_speed()])],
            Self::Stops => {
                let touched = run("-touched", vec![self.stops(STOPS_TOUCHED)]);
                let touched = Run { machine: INTEL_TOUCHED, seconds: 900, ..touched };
                vec![run("", vec![self.stops(STOPS)]), touched]
            }
            Self::Kernels => {
                let of_package = |(name, package): &(&str, &'static str)| {
                    let tests = run(name, vec![self.tests("tests", Some(STOCK_SUITE))]);
                    Run { guests: Guests::Stock(package), ..tests }
                };
                KERNELS.iter().map(of_package).collect()
            }
            Self::Smp => {
                let [changes, many, mut stress] =
                    SMP_SUITES.map(|suite| self.tests(suite, Some(suite)));
                stress.env.insert(STRESS_SECONDS_ENV.to_owned(), STRESS_SECONDS.to_owned());
                let args = ["--scaling", "--tsc-counts-instructions"].map(str::to_owned);
                let scaling = self.step("scaling", "/bin/counts", args.into());
                vec![run("", vec![changes, many, stress, scaling])]
            }
            Self::Intel | Self::Amd => {
                // The counts twice: the same program must give the same.
                let counts = ["counts", "counts again"].map(|name| self.counts(name));
                let machine = self.machine().counting();
                let counts =
                    Run { machine, seconds: COUNTS_SECONDS, ..run("-counts", counts.into()) };
                // In parts that end soon also on a machine that does other work.
                let parts = [("-1", "1/3"), ("-2", "2/3"), ("-3", "3/3")];
                let tests = parts.map(|(name, part)| run(name, vec![self.part(part)]));
                [counts].into_iter().chain(tests).collect()
            }
        }
    }

    /// [`Run::seconds`] of a machine with tests.
    const fn seconds(self) -> u32 {
        match self {
            Self::Smp => 50,
            Self::Intel | Self::Amd => 130,
            Self::Stock | Self::Kernels | Self::DiskSpeed => 150,
            Self::Debian | Self::Stops => 400,
        }
    }

    fn tests(self, name: &str, filter: Option<&str>) -> Step {
        let fixed = ["--test-threads", "2", "--color", "never"];
        let args = fixed.into_iter().chain(filter).map(str::to_owned).collect();
        self.step(name, TESTS, args)
    }

    fn part(self, part: &str) -> Step {
        let mut step = self.tests("tests", None);
        step.env.insert(PART_ENV.to_owned(), part.to_owned());
        step
    }

    /// Whether it is right that this plan skips a test for this reason.
    pub(crate) fn may_skip(self, test: &str, reason: &str) -> bool {
        let lacks = self.machine().lacks.split(';').filter_map(|lack| lack.split_once('='));
        let named = lacks.into_iter().any(|(_, why)| why == reason);
        // What needs no VM is compared here, where binutils and pahole are; mounts need no VMX
        // either, Python's packages come from the network, and the lab has no shell, no other
        // network and no programs for one. Its kernel has no huge pages, and nothing that a jail is
        // made of.
        let is_elsewhere = matches!(
            reason,
            ONCE | NO_APT
                | NO_CGROUP
                | NO_DEBIAN_IMAGE
                | NO_DEBUG_INFO
                | NO_FUSE
                | NO_HUGE_PAGES
                | NO_IPROUTE2
                | NO_LANDLOCK
                | NO_NAMESPACES
                | NO_PASST
                | NO_PERF
                | NO_PYTHON
                | NO_SHELL
                | NO_STUNNEL
                | NO_SYSTEMD
                | NO_SYSTEMD_ANALYZE
                | NO_TRACE_CMD
                | NO_USER_NAMESPACES
        );
        let named = named || is_elsewhere;
        named || (!matches!(self, Self::Stock | Self::Kernels) && test.starts_with(STOCK_SUITE))
    }

    /// Needs of tests that it lacks, as [`LACKS_ENV`]; with `once`, also the time for those that
    /// the host runs.
    fn lacks(self, once: bool) -> String {
        let own = self.machine().lacks;
        let once = once.then(|| format!("repeat={ONCE};two_vcpus={ONCE}"));
        let all = [Some(own.to_owned()), once].into_iter().flatten();
        all.filter(|lack| !lack.is_empty()).collect::<Vec<_>>().join(";")
    }

    fn step(self, name: &str, program: &str, args: Vec<String>) -> Step {
        let env = [
            (GUEST_ENV, "/guest"),
            (REPORT_ENV, RESULTS),
            (PROGRESS_ENV, "1"),
            (LACKS_ENV, &self.lacks(false)),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Step {
            name: name.to_owned(),
            program: PathBuf::from(program),
            args,
            env: BTreeMap::from(env),
            collect: Vec::new(),
        }
    }

    fn stops(self, values: [&str; 3]) -> Step {
        let mut step = self.step("stops", "/bin/speed", vec!["large".to_owned()]);
        let env = STOPS_ENV.into_iter().zip(values);
        step.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
        step
    }

    fn disk_speed(self) -> Step {
        let file = "/tmp/disk.json";
        let args = ["--qemu", &format!("/{QEMU}"), "--json", file].map(str::to_owned);
        Step { collect: vec![file.into()], ..self.step("disk", "/bin/disk", args.into()) }
    }

    fn counts(self, name: &str) -> Step {
        let file = format!("/tmp/{COUNTS_FILE}");
        let mut args = vec!["--tsc-counts-instructions".to_owned(), "--json".to_owned()];
        args.push(file.clone());
        if self == Self::Amd {
            args.push("--no-single-step".to_owned());
        }
        Step { collect: vec![file.into()], ..self.step(name, "/bin/counts", args) }
    }
}

impl Run {
    /// Our programs that it needs, besides process 1.
    pub(crate) fn programs(&self) -> &'static [Program] {
        match self.plan {
            Plan::DiskSpeed => &[Program { kind: "bench", name: "disk" }],
            Plan::Stops => &[Program { kind: "bench", name: "speed" }],
            _ => &PROGRAMS,
        }
    }

    /// Files of the initramfs, besides the job. Our programs are in the folder `programs`.
    pub(crate) fn contents(&self, programs: &Path) -> Result<Contents, LabError> {
        let mut contents = Contents::new();
        let mut add = |name: &str, path: PathBuf| contents.push((name.to_owned(), path));
        add("init", programs.join(INIT.name));
        for Program { name, .. } in self.programs() {
            add(&format!("bin/{name}"), programs.join(name));
        }
        if self.plan == Plan::DiskSpeed {
            for file in artifacts::qemu()? {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                add(&format!("{QEMU}/{name}"), file);
            }
        }
        if self.guests == Guests::Debian {
            let image = artifacts::debian_image()?;
            add("guest/out/debian/vmlinuz", image.join("vmlinuz"));
            add("guest/out/debian/initrd.img", image.join("initrd.img"));
            return Ok(contents);
        }
        artifacts::guest_files()?.into_iter().for_each(|(name, path)| add(name, path));
        if self.has_tests() {
            artifacts::bpftrace_tools()?.into_iter().for_each(|(name, path)| add(&name, path));
        }
        if let Guests::Stock(package) = self.guests {
            let files = artifacts::debian_kernel(package)?;
            files.into_iter().for_each(|(name, path)| add(name, path));
        }
        Ok(contents)
    }

    /// The machine's second disk, [`DEBIAN_DISK`] there.
    pub(crate) fn disk(&self) -> Result<Option<PathBuf>, LabError> {
        let disk = || Ok(artifacts::debian_image()?.join("disk.raw"));
        (self.host_kernel() == HostKernel::WithDisk).then(disk).transpose()
    }

    /// The machine's Linux.
    pub(crate) fn host_kernel(&self) -> HostKernel {
        match self.guests {
            Guests::Debian => HostKernel::WithDisk,
            Guests::Tiny | Guests::Stock(_) => HostKernel::Diskless,
        }
    }

    /// Whether tests are among what it does.
    pub(crate) fn has_tests(&self) -> bool {
        self.job.steps.iter().any(|step| step.program == Path::new(TESTS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(plan: Plan, filter: Option<&str>) -> Vec<(String, Vec<String>)> {
        let names = |run: &Run| run.job.steps.iter().map(|step| step.name.clone()).collect();
        plan.runs(filter).iter().map(|run| (run.name.clone(), names(run))).collect()
    }

    fn expected(runs: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let owned = |steps: &&[&str]| steps.iter().map(|step| (*step).to_owned()).collect();
        runs.iter().map(|(name, steps)| ((*name).to_owned(), owned(steps))).collect()
    }

    #[test]
    fn counts_are_taken_twice_unless_tests_were_chosen() {
        let tests: &[&str] = &["tests"];
        let counts: &[&str] = &["counts", "counts again"];
        let machines = ["intel-1", "intel-2", "intel-3"].map(|name| (name, tests));
        let all = expected(&[&[("intel-counts", counts)], &machines[..]].concat());
        assert_eq!(steps(Plan::Intel, None), all);
        assert_eq!(steps(Plan::Intel, Some("hits")), expected(&[("intel", tests)]));
        assert_eq!(steps(Plan::Stock, None), expected(&[("stock", tests)]));
        assert_eq!(steps(Plan::DiskSpeed, None), expected(&[("disk-speed", &["disk"])]));
        let smp: &[&str] = &["smp::", "cpus::", "stress::", "scaling"];
        assert_eq!(steps(Plan::Smp, None), expected(&[("smp", smp)]));
        let with_tests: Vec<bool> = Plan::Amd.runs(None).iter().map(Run::has_tests).collect();
        assert_eq!(with_tests, [false, true, true, true]);
    }

    #[test]
    fn a_plan_skips_what_its_machine_lacks_and_the_stock_kernel() {
        assert!(
            Plan::Intel.may_skip("stock::x", "why") && !Plan::Stock.may_skip("stock::x", "why")
        );
        assert!(!Plan::Intel.may_skip("hits::x", "why"));
        assert!(Plan::Intel.may_skip("source_lines::x", NO_DEBUG_INFO));
        let reason = "KVM_GUESTDBG_SINGLESTEP ends Bochs under SVM";
        assert!(
            Plan::Amd.may_skip("counts::x", reason) && !Plan::Intel.may_skip("counts::x", reason)
        );
    }

    #[test]
    fn once_leaves_out_what_the_host_runs() {
        let lacks = |plan: Plan| {
            let run = plan.runs(None).pop().expect("a plan runs something").once();
            assert!(plan.may_skip("hits::x", ONCE));
            run.job.steps[0].env[LACKS_ENV].clone()
        };
        let once = format!("repeat={ONCE};two_vcpus={ONCE}");
        assert!(lacks(Plan::Intel).ends_with(&format!(";{once}")), "{}", lacks(Plan::Intel));
        assert_eq!(lacks(Plan::Smp), once);
        let counts = &Plan::Intel.runs(None)[0];
        let args = |run: &Run| run.job.steps[0].args.ends_with(&ONCE_COUNTS.map(str::to_owned));
        assert!(!args(counts));
        assert!(args(&Plan::Intel.runs(None).swap_remove(0).once()));
    }

    #[test]
    fn each_step_is_told_what_it_needs() {
        let settings = [("SECONDS".to_owned(), "600".to_owned())];
        let runs = Plan::Amd.runs(None).into_iter();
        let jobs: Vec<Job> = runs.map(|run| run.job.with_env(&settings)).collect();
        let steps: Vec<&Step> = jobs.iter().flat_map(|job| &job.steps).collect();
        let has_both =
            |step: &&Step| step.env["SECONDS"] == "600" && step.env[GUEST_ENV] == "/guest";
        assert!(steps.iter().all(has_both));
        let parts: Vec<Option<&str>> =
            steps.iter().map(|s| s.env.get(PART_ENV).map(String::as_str)).collect();
        assert_eq!(parts, [None, None, Some("1/3"), Some("2/3"), Some("3/3")]);
        assert!(steps[0].args.contains(&"--no-single-step".to_owned()));
    }
}
