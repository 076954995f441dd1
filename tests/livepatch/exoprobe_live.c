// SPDX-License-Identifier: MIT OR GPL-2.0-only
// A live patch for tests: another getpid(), which gives the same answer.
// Documentation/livepatch/livepatch.rst. Built by scripts/debian-kernel.sh.
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/sched.h>

static long live_getpid(const struct pt_regs *regs)
{
	return task_tgid_vnr(current);
}

static struct klp_func functions[] = {
	{ .old_name = "__do_sys_getpid", .new_func = live_getpid },
	{},
};

static struct klp_object objects[] = {
	{ .funcs = functions },
	{},
};

static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

static int __init begin(void)
{
	return klp_enable_patch(&patch);
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("live patch for exoprobe's tests");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_INFO(livepatch, "Y");
