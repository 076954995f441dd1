//! A case of a suite: its name, what it needs, and how it runs.

use super::Need;

/// Numbers of vCPUs that a case which takes their number is run with.
pub const VCPU_COUNTS: [u8; 2] = [1, 2];

/// Needs that only the host has, or only the lab: such a case is run there with each number of
/// vCPUs.
const ONE_PLACE: [Need; 6] =
    [Need::DebugInfo, Need::Fuse, Need::Python, Need::Shell, Need::Repeat, Need::QuickKernel];

/// One function of a suite; made by [`cases!`](crate::cases).
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Path of the module it stands in, as `module_path!` has it.
    pub module: &'static str,
    /// Its name.
    pub function: &'static str,
    /// Everything it needs of its place.
    pub needs: &'static [Need],
    /// The function.
    pub run: Run,
}

/// How a case runs. It fails by a panic.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Once.
    Once(fn()),
    /// For each of [`VCPU_COUNTS`], which it is given.
    EachVcpuCount(fn(u8)),
}

/// One run of a case.
pub(super) struct Test {
    pub(super) name: String,
    pub(super) needs: Vec<Need>,
    pub(super) body: Box<dyn FnOnce() + Send>,
}

impl Case {
    /// The tests that it makes: `module::function`, or `module::function [2 vCPUs]`.
    pub(super) fn tests(&self) -> Vec<Test> {
        let module = self.module.rsplit("::").next().unwrap_or_default();
        let name = format!("{module}::{}", self.function);
        let needs = self.needs.to_vec();
        match self.run {
            Run::Once(run) => vec![Test { name, needs, body: Box::new(run) }],
            Run::EachVcpuCount(run) => VCPU_COUNTS
                .map(|vcpus| {
                    let has_both = needs.iter().any(|need| ONE_PLACE.contains(need));
                    let (mark, own) = match vcpus {
                        1 if has_both => ("", &[][..]),
                        1 => ("", &[Need::OneVcpu][..]),
                        _ if has_both => ("s", &[Need::Smp][..]),
                        _ => ("s", &[Need::Smp, Need::TwoVcpus][..]),
                    };
                    let needs = needs.iter().copied();
                    let needs = needs.filter(|need| vcpus > 1 || *need != Need::ContendedLocks);
                    Test {
                        name: format!("{name} [{vcpus} vCPU{mark}]"),
                        needs: needs.chain(own.iter().copied()).collect(),
                        body: Box::new(move || run(vcpus)),
                    }
                })
                .into(),
        }
    }
}

/// The cases of a suite, as a constant slice of [`Case`](crate::harness::Case).
///
/// An entry is `function`, or `function(vcpus)` for one that takes the number of vCPUs. After it
/// may stand `needs [..]`, the whole list of its [`Need`](crate::harness::Need)s; without it the
/// case needs `Kvm`; `function(vcpus)` needs `OneVcpu`, or `Smp` and `TwoVcpus`, too. A function
/// that is in no list is dead code, which the compiler reports.
#[macro_export]
macro_rules! cases {
    (@needs) => { &[$crate::harness::Need::Kvm] };
    (@needs [$($need:ident),*]) => { &[$($crate::harness::Need::$need),*] };
    (@run $function:ident) => { $crate::harness::Run::Once($function) };
    (@run $function:ident vcpus) => { $crate::harness::Run::EachVcpuCount($function) };
    ($($function:ident $(($vcpus:ident))? $(needs $needs:tt)?),* $(,)?) => {
        &[$($crate::harness::Case {
            module: module_path!(),
            function: stringify!($function),
            needs: $crate::cases!(@needs $($needs)?),
            run: $crate::cases!(@run $function $($vcpus)?),
        }),*]
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() {}
    fn counted(vcpus: u8) {
        assert_eq!(vcpus, 1);
    }

    const CASES: &[Case] = cases![
        plain, counted(vcpus) needs [Kvm, Loopback, ContendedLocks], plain needs [], counted(vcpus),
        counted(vcpus) needs [Python],
    ];

    #[test]
    fn names_are_the_module_the_function_and_the_vcpus() {
        let names: Vec<String> =
            CASES[..2].iter().flat_map(Case::tests).map(|test| test.name).collect();
        let expected = ["tests::plain", "tests::counted [1 vCPU]", "tests::counted [2 vCPUs]"];
        assert_eq!(names, expected);
        let needs: Vec<Vec<Need>> = CASES[1].tests().into_iter().map(|test| test.needs).collect();
        let one = [Need::Kvm, Need::Loopback, Need::OneVcpu];
        let contended = Need::ContendedLocks;
        let two = [Need::Kvm, Need::Loopback, contended, Need::Smp, Need::TwoVcpus];
        assert_eq!(needs, [&one[..], &two]);
        let needs: Vec<Vec<Need>> = CASES[4].tests().into_iter().map(|test| test.needs).collect();
        assert_eq!(needs, [vec![Need::Python], vec![Need::Python, Need::Smp]]);
    }

    #[test]
    fn needs_are_kvm_unless_listed() {
        let needs: Vec<&[Need]> = CASES.iter().map(|case| case.needs).collect();
        let listed = [Need::Kvm, Need::Loopback, Need::ContendedLocks];
        assert_eq!(needs, [&[Need::Kvm][..], &listed, &[], &[Need::Kvm], &[Need::Python]]);
    }

    #[test]
    fn a_case_is_given_its_number_of_vcpus() {
        let [one, two] = CASES[1].tests().try_into().unwrap_or_else(|_| panic!("two tests"));
        (one.body)();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(two.body)).is_err());
    }
}
