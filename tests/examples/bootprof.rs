use exoprobe_introspect::SymbolTable;
use exoprobe_tests::{TestGuest, TestKernel, host};
use exoprobe_vmm::{Vm, VmConfig};
use std::collections::HashMap;
use std::time::{Duration, Instant};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let kernel = if args[1] == "tiny" { TestKernel::Tiny } else { TestKernel::Linux6_12 };
    let vcpus: u8 = args[2].parse().unwrap();
    let extra = args.get(3).cloned().unwrap_or_default();
    let config = kernel.config(vcpus);
    let config = VmConfig { cmdline: format!("{} nokaslr {extra}", config.cmdline), ..config };
    let map = SymbolTable::load(&kernel.file("System.map")).unwrap();
    let begun = Instant::now();
    let guest = TestGuest::of_kernel(Vm::create(&host(), &config).unwrap(), None);
    guest.power_on();
    let mut syms: HashMap<String, u32> = HashMap::new();
    let mut idle = 0u32; let mut user = 0; let mut n = 0u32;
    let mut timeline: Vec<(f64, String)> = vec![];
    loop {
        let log = guest.vm.serial(1).unwrap().log();
        if log.wait_line(0, Duration::from_millis(3), |l| l == "ready").is_some() { break; }
        let Ok(r) = guest.vm.registers(0) else { break };
        n += 1;
        let rip = r.regs.rip;
        if rip < 1 << 47 { user += 1; continue; }
        let name = map.resolve(exoprobe_guest::Gva(rip)).map(|s| s.name.to_string()).unwrap_or_default();
        let f = name.split('+').next().unwrap_or("").to_string();
        if f.contains("idle") || f.contains("halt") { idle += 1; }
        *syms.entry(f.clone()).or_default() += 1;
        timeline.push((begun.elapsed().as_secs_f64(), f));
    }
    let total = begun.elapsed().as_secs_f64();
    println!("total {total:.1} s, {n} samples, user {user}, idle {idle}");
    let mut v: Vec<_> = syms.into_iter().collect();
    v.sort_by_key(|e| std::cmp::Reverse(e.1));
    for (s, c) in v.iter().take(45) { println!("{:6.2} s {s}", f64::from(*c) / f64::from(n) * total); }
    // timeline: dominating function each half second
    let mut t = 0.0;
    let mut i = 0;
    while i < timeline.len() {
        let mut m: HashMap<&str, u32> = HashMap::new();
        while i < timeline.len() && timeline[i].0 < t + 1.0 { *m.entry(&timeline[i].1).or_default() += 1; i += 1; }
        let mut w: Vec<_> = m.into_iter().collect();
        w.sort_by_key(|e| std::cmp::Reverse(e.1));
        println!("t={t:5.1} {:?}", &w[..w.len().min(4)]);
        t += 1.0;
    }
    println!("{}", guest.console());
}
