/* Enqueue a list of commands on a stream: kernels, and what goes over the network between them.
 *
 * commands.py makes the lists, and gives the functions of the driver and of NCCL that are called, so
 * neither is needed to compile this. Their types are as in cuda.h and nccl.h, where statuses are
 * integers, 0 if all is well.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i64;

/* Of Python's stable interface, whose headers need not be there. */
typedef struct object PyObject;
void *PyLong_AsVoidPtr(PyObject *number);
long long PyLong_AsLongLong(PyObject *number);
PyObject *PyLong_FromLong(long number);
PyObject *PyErr_Occurred(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *thread);

enum { NCCL_UINT8 = 1, NCCL_IN_PROGRESS = 7, ABORTED = -1 };

/* CUlaunchAttribute and CUlaunchConfig. */
typedef struct {
    int id;
    char padding[4];
    union {
        int flag;
        char bytes[64];
    } value;
} attribute_t;

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    attribute_t *attributes;
    unsigned num_attributes;
} config_t;

enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct {
    int (*launch)(const config_t *config, void *kernel, void **arguments, void **extra);
    int (*write_word)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*receive)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*async_error)(void *comm, int *status);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
} calls_t;

typedef struct {
    void *at;
    size_t num_bytes;
    int32_t peer, is_sent;
} transfer_t;

enum { OPEN, POSTING, CLOSED };

/* One that another thread may free, but not while this one posts. */
typedef struct {
    void *comm;
    _Atomic int32_t state;
} communicator_t;

typedef struct {
    communicator_t *communicator;
    i64 *number; /* of the exchange before this one */
    /* Of the host, two of 32 bits: numbers of the exchanges begun and ended. 0 if kernels around it
     * tell. */
    uint64_t words;
    i64 num_transfers;
    const transfer_t *transfers;
    /* If not NULL, it travels beside the list, on this stream: once `before` has been recorded on
     * the list's, if there is that event; when it has ended `after` is. */
    void *stream, *before, *after;
} exchange_t;

/* Of one that launches `exchange` is NULL; a kernel without programs is left out. One that `follows`
 * waits by itself for what the stream has before it. If there is an event `awaited`, the stream
 * waits for that. */
typedef struct {
    void *kernel;
    const i64 *programs;
    void **arguments;
    uint32_t threads, shared_bytes, follows;
    exchange_t *exchange;
    void *awaited;
} command_t;

/* A list. */
typedef struct {
    const calls_t *calls;
    const command_t *commands;
    i64 count;
    i64 *numbers;       /* where launches find theirs */
    i64 num_numbers;
    i64 status;         /* of what has failed in the latest call */
} list_t;

/* What differs from call to call: a stream, events around the list, each of which may be NULL, and
 * numbers. */
typedef struct {
    void *stream;
    void *before_on; /* the list begins when this stream has come as far as it is now, */
    void *before;    /* of which this event tells, */
    void *awaited;   /* and when this event has been recorded; */
    void *ended;     /* at its end this one is, */
    void *told;      /* and this one. */
    i64 numbers[];
} call_t;

enum { WHOLE, LAUNCH, WORD, NETWORK, EVENT }; /* what has failed */

static int is_bad(int status) { return status && status != NCCL_IN_PROGRESS; }

/* All sends and receives as one group, so that none waits for another to be posted. */
static int post(const calls_t *calls, const exchange_t *exchange, void *stream)
{
    void *comm = exchange->communicator->comm;
    int status = calls->group_start();
    if (status)
        return status;
    for (i64 i = 0; i < exchange->num_transfers && !is_bad(status); i++) {
        const transfer_t *each = exchange->transfers + i;
        status = each->is_sent
                     ? calls->send(each->at, each->num_bytes, NCCL_UINT8, each->peer, comm, stream)
                     : calls->receive(each->at, each->num_bytes, NCCL_UINT8, each->peer, comm,
                                      stream);
    }
    int ended = calls->group_end();
    if (is_bad(status) || is_bad(ended))
        return is_bad(status) ? status : ended;
    do { /* a communicator that does not block is polled; connections may have failed before */
        int failed = calls->async_error(comm, &status);
        if (failed)
            return failed;
    } while (status == NCCL_IN_PROGRESS);
    return status;
}

static int post_if_open(const calls_t *calls, const exchange_t *exchange, void *stream)
{
    _Atomic int32_t *state = &exchange->communicator->state;
    int32_t found = OPEN;
    while (!atomic_compare_exchange_weak(state, &found, POSTING)) {
        if (found == CLOSED)
            return ABORTED;
        found = OPEN;
    }
    int status = post(calls, exchange, stream);
    atomic_store(state, OPEN);
    return status;
}

/* Let nobody post any more. 0: somebody is just posting. */
int fuscoc_close(communicator_t *communicator)
{
    int32_t found = OPEN;
    return atomic_compare_exchange_strong(&communicator->state, &found, CLOSED) || found == CLOSED;
}

static int launch(const calls_t *calls, const command_t *command, void *stream)
{
    attribute_t early = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
    config_t config = {.grid = {(unsigned)*command->programs, 1, 1},
                       .block = {command->threads, 1, 1},
                       .shared_bytes = command->shared_bytes,
                       .stream = stream,
                       .attributes = &early,
                       .num_attributes = command->follows};
    return calls->launch(&config, command->kernel, command->arguments, NULL);
}

/* Let a stream wait for what another one has been given so far. */
static int follow(const calls_t *calls, void *stream, void *event, void *other)
{
    int status = calls->record(event, other);
    return status ? status : calls->wait(stream, event, 0);
}

static int travel(const calls_t *calls, exchange_t *exchange, void *stream, int *status)
{
    if (!exchange->words) {
        *status = post_if_open(calls, exchange, stream);
        return NETWORK;
    }
    uint32_t number = (uint32_t)++*exchange->number;
    *status = calls->write_word(stream, exchange->words, number, 0);
    if (*status)
        return WORD;
    int posted = post_if_open(calls, exchange, stream);
    /* What could not be posted is not waited for, either. */
    *status = calls->write_word(stream, exchange->words + sizeof number, number, 0);
    if (posted)
        *status = posted;
    return posted ? NETWORK : WORD;
}

/* Without events nothing is to ask for any. */
#define INLINED inline __attribute__((always_inline))

/* Record an event around the work of a command, if somebody asks when that was. */
static inline int mark(const calls_t *calls, void *const *event, void *stream)
{
    return event ? calls->record(*event, stream) : 0;
}

/* `begun` and `ended`: where the events around its work are, or NULL. */
static INLINED int carry_out(const calls_t *calls, const command_t *command, void *stream,
                     void *const *begun, void *const *ended, int *status)
{
    exchange_t *exchange = command->exchange;
    if (!exchange) {
        if (command->awaited && (*status = calls->wait(stream, command->awaited, 0)))
            return EVENT;
        if (*command->programs <= 0)
            return LAUNCH;
        if ((*status = mark(calls, begun, stream)))
            return EVENT;
        if ((*status = launch(calls, command, stream)))
            return LAUNCH;
        *status = mark(calls, ended, stream);
        return EVENT;
    }
    void *own = exchange->stream ? exchange->stream : stream;
    if (exchange->stream && exchange->before &&
        (*status = follow(calls, own, exchange->before, stream)))
        return EVENT;
    if ((*status = mark(calls, begun, own)))
        return EVENT;
    int kind = travel(calls, exchange, own, status);
    if (*status)
        return kind;
    *status = mark(calls, ended, own);
    if (exchange->stream && !*status)
        *status = calls->record(exchange->after, own);
    return EVENT;
}

static int begin(const calls_t *calls, const call_t *call)
{
    int status = 0;
    if (call->before)
        status = follow(calls, call->stream, call->before, call->before_on);
    if (call->awaited && !status)
        status = calls->wait(call->stream, call->awaited, 0);
    return status;
}

static int end(const calls_t *calls, const call_t *call)
{
    int status = call->ended ? calls->record(call->ended, call->stream) : 0;
    int told = call->told ? calls->record(call->told, call->stream) : 0;
    return status ? status : told;
}

/* `marks`: NULL, or two events for every command. */
static INLINED int submit(list_t *list, const call_t *call, void *const *marks)
{
    const calls_t *calls = list->calls;
    memcpy(list->numbers, call->numbers, (size_t)list->num_numbers * sizeof *list->numbers);
    int status = begin(calls, call);
    int failed = status ? EVENT : WHOLE;
    for (i64 i = 0; i < list->count && !failed; i++) {
        void *const *begun = marks ? marks + 2 * i : NULL;
        void *const *ended = marks ? begun + 1 : NULL;
        int kind =
            carry_out(calls, list->commands + i, call->stream, begun, ended, &status);
        failed = status ? kind : WHOLE;
    }
    /* What is there of a list that has failed ends, too. */
    int ended = end(calls, call);
    if (!failed && ended) {
        status = ended;
        failed = EVENT;
    }
    list->status = status;
    return failed;
}

/* Returns which call has failed, with the `status` of the list; commands behind it are left out. */
int fuscoc_submit(list_t *list, const call_t *call) { return submit(list, call, NULL); }

/* The same as a function of Python's own, of the list, the call, and words that this begins with.
 * With caches that other work has filled ctypes takes several times as long to get here. */
PyObject *fuscoc_submit_words(PyObject *self, PyObject *const *given, intptr_t count)
{
    (void)self;
    list_t *list = PyLong_AsVoidPtr(given[0]);
    call_t *call = PyLong_AsVoidPtr(given[1]);
    i64 *words = (i64 *)call;
    for (intptr_t i = 2; i < count; i++)
        if ((words[i - 2] = PyLong_AsLongLong(given[i])) == -1 && PyErr_Occurred())
            return NULL;
    void *thread = PyEval_SaveThread();
    int failed = fuscoc_submit(list, call);
    PyEval_RestoreThread(thread);
    return PyLong_FromLong(failed);
}

/* The same, with two events for every command that are recorded before and behind its work, where it
 * has some: on the stream that does it. */
int fuscoc_submit_marked(list_t *list, const call_t *call, void *const *marks)
{
    return submit(list, call, marks);
}
