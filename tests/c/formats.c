/*
 * Prints how libtraceevent reads files `format`:
 *
 *   formats FILE...
 *
 *   event SYSTEM NAME ID parsed|failed      `failed`: the fields are known, the print format is not
 *   common|field NAME OFFSET SIZE FLAGS TYPE
 *   arguments NUMBER                        of the print format
 *
 * SYSTEM is the file's second last folder. FLAGS are letters: s signed, a array, d dynamic, t text, p pointer, l long; or -.
 */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <traceevent/event-parse.h>

#define FORMAT_MAX (1 << 20)

static void print_fields(const char *kind, const struct tep_format_field *field)
{
	static const struct {
		unsigned long flag;
		char letter;
	} letters[] = {
		{ TEP_FIELD_IS_SIGNED, 's' }, { TEP_FIELD_IS_ARRAY, 'a' }, { TEP_FIELD_IS_DYNAMIC, 'd' },
		{ TEP_FIELD_IS_STRING, 't' }, { TEP_FIELD_IS_POINTER, 'p' }, { TEP_FIELD_IS_LONG, 'l' },
	};

	for (; field; field = field->next) {
		printf("%s %s %d %d ", kind, field->name, field->offset, field->size);
		int any = 0;
		for (size_t i = 0; i < sizeof(letters) / sizeof(*letters); i++)
			if (field->flags & letters[i].flag)
				any = putchar(letters[i].letter);
		printf("%s %s\n", any ? "" : "-", field->type);
	}
}

static int print_format(const char *path)
{
	static char text[FORMAT_MAX];
	FILE *file = fopen(path, "r");

	if (!file) {
		perror(path);
		return 1;
	}
	size_t size = fread(text, 1, sizeof(text), file);
	fclose(file);

	/* The folders above `format` name the event: .../SYSTEM/EVENT/format */
	char *folder = strdup(path);
	char *system = basename(dirname(dirname(folder)));
	struct tep_handle *tep = tep_alloc();
	tep_set_long_size(tep, 8);
	tep_set_page_size(tep, 4096);
	enum tep_errno error = tep_parse_event(tep, text, size, system);
	struct tep_event **events = tep_list_events(tep, TEP_EVENT_SORT_ID);
	if (!events || !events[0] || events[1]) {
		fprintf(stderr, "%s: not one event: error %d\n", path, error);
		return 1;
	}
	struct tep_event *event = events[0];
	int failed = error || (event->flags & TEP_EVENT_FL_FAILED);
	printf("event %s %s %d %s\n", event->system, event->name, event->id, failed ? "failed" : "parsed");
	print_fields("common", event->format.common_fields);
	print_fields("field", event->format.fields);
	int arguments = 0;
	for (const struct tep_print_arg *arg = event->print_fmt.args; arg; arg = arg->next)
		arguments++;
	printf("arguments %d\n", arguments);
	tep_free(tep);
	free(folder);
	return 0;
}

int main(int argc, char **argv)
{
	int status = argc < 2 ? 2 : 0;

	for (int i = 1; i < argc && !status; i++)
		status = print_format(argv[i]);
	return status;
}
