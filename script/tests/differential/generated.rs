//! Programs that a generator makes.

/// Programs of arithmetic, made by a generator that always makes the same.
pub(crate) fn generated() -> Vec<String> {
    let mut random = Random(42);
    (0..100).map(|index| program(index, &mut random)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // The generator of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

fn program(index: usize, random: &mut Random) -> String {
    let numbers = ["0", "1", "7", "-3", "255", "65536", "-70000", "4294967295", "1234567890123"];
    let (a, b, c) = (random.pick(&numbers), random.pick(&numbers), random.pick(&numbers));
    let expr = expression(random, 3);
    match index % 4 {
        0 => format!("$a = {a}; $b = {b}; $c = {c}; print({expr});"),
        1 => format!("$a = {a}; $b = {b}; $c = {c}; @x = {expr};"),
        2 => format!("$a = {a}; $b = {b}; $c = {c}; printf(\"%ld %lx\\n\", {expr}, {expr});"),
        _ => {
            let (x, y) = (random.below(1000), random.below(100_000));
            let map = random.pick(&[
                "count()",
                "sum($a)",
                "avg($a)",
                "hist($a)",
                "lhist($a, 0, 2000, 100)",
                "stats($a)",
            ]);
            format!(
                "$a = {x}; @g[1] = {map}; $a = {y}; @g[1] = {map}; @g[1] = {map}; @g[2] = {map};"
            )
        }
    }
}

fn expression(random: &mut Random, depth: u32) -> String {
    if depth == 0 || random.below(5) == 0 {
        return random
            .pick(&[
                "$a",
                "$b",
                "$c",
                "3",
                "100",
                "((uint8)$a + 0)",
                "((int32)$b + 0)",
                "(uint64)$c",
            ])
            .to_owned();
    }
    let left = expression(random, depth - 1);
    match random.below(8) {
        0 => format!("(-{left})"),
        1 => format!("(~{left})"),
        2 => format!(
            "({left} > {} ? {left} : {})",
            random.pick(&["$a", "5"]),
            random.pick(&["1", "2"])
        ),
        _ => {
            let right = expression(random, depth - 1);
            let op = random.pick(&[
                "+", "-", "*", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=", "&&", "||",
            ]);
            format!("({left} {op} {right})")
        }
    }
}
