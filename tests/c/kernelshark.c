/*
 * Lists the events of a trace.dat as KernelShark's library reads them, in order of time, a line each:
 *
 *   kernelshark FILE
 *
 *   STREAM TASK-PID CPU NANOSECONDS EVENT INFO
 *
 * Tabs are between them. The library takes only a FILE whose name ends in `.dat`.
 * STREAM counts from 0: the file, then each instance in it. Line ends in INFO are blanks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <kernelshark/libkshark-tepdata.h>
#include <kernelshark/libkshark.h>

static void print_entry(const struct kshark_entry *entry)
{
	char *task = kshark_get_task(entry);
	char *event = kshark_get_event_name(entry);
	char *info = kshark_get_info(entry);

	for (char *at = info; at && *at; at++)
		if (*at == '\n')
			*at = ' ';
	printf("%d\t%s-%d\t%d\t%" PRId64 "\t%s\t%s\n", entry->stream_id, task ? task : "?",
	       kshark_get_pid(entry), entry->cpu, entry->ts, event ? event : "?", info ? info : "?");
	free(task);
	free(event);
	free(info);
}

int main(int argc, char **argv)
{
	struct kshark_context *context = NULL;
	struct kshark_entry **entries = NULL;
	ssize_t number;

	if (argc != 2) {
		fprintf(stderr, "usage: kernelshark FILE\n");
		return 2;
	}
	if (!kshark_instance(&context)) {
		fprintf(stderr, "kernelshark: no memory\n");
		return 1;
	}
	int stream = kshark_open(context, argv[1]);
	if (stream < 0) {
		fprintf(stderr, "kernelshark: %s does not open: %d\n", argv[1], stream);
		return 1;
	}
	int buffers = kshark_tep_init_all_buffers(context, stream);
	if (buffers < 0) {
		fprintf(stderr, "kernelshark: the instances do not open: %d\n", buffers);
		return 1;
	}
	number = kshark_load_all_entries(context, &entries);
	if (number < 0) {
		fprintf(stderr, "kernelshark: the entries do not load: %zd\n", number);
		return 1;
	}
	for (ssize_t i = 0; i < number; i++) {
		print_entry(entries[i]);
		free(entries[i]);
	}
	free(entries);
	kshark_close_all(context);
	kshark_free(context);
	return 0;
}
