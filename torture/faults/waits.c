/* What libfaketime 0.9.10 lacks, loaded before it.

   A program reckons a deadline by the wrong clock and hands it to a wait that libfaketime does not know, which takes
   it for one of the right clock: an hour ahead each wait takes an hour, an hour behind it takes no time. librdkafka
   waits with cnd_timedwait, Python with sem_clockwait, C++ with pthread_cond_clockwait. And a clock that counts the
   processor's time of a thread is no time of day: the JVM would find that it worked for less than nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Looked for once: clocks are read all the time. */
#define NEXT(name) ({ static __typeof__(&name) found; found ? found : (found = dlsym(RTLD_NEXT, #name)); })
#define SECOND 1000000000L

/* The same moment by the right clock. */
static struct timespec rightly(clockid_t clock, const struct timespec *wrongly) {
    struct timespec wrong_now, right_now, found;
    clock_gettime(clock, &wrong_now);
    syscall(SYS_clock_gettime, clock, &right_now);
    found.tv_sec = wrongly->tv_sec - wrong_now.tv_sec + right_now.tv_sec;
    found.tv_nsec = wrongly->tv_nsec - wrong_now.tv_nsec + right_now.tv_nsec;
    for (; found.tv_nsec < 0; found.tv_nsec += SECOND) found.tv_sec--;
    for (; found.tv_nsec >= SECOND; found.tv_nsec -= SECOND) found.tv_sec++;
    if (found.tv_sec < 0) found.tv_sec = found.tv_nsec = 0;
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int is_of_processor = clock < 0 || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
    return is_of_processor ? (int)syscall(SYS_clock_gettime, clock, now) : NEXT(clock_gettime)(clock, now);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    struct timespec actual = rightly(clock, until);
    return NEXT(sem_clockwait)(semaphore, clock, &actual);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
    struct timespec actual = rightly(clock, until);
    return NEXT(pthread_cond_clockwait)(condition, mutex, clock, &actual);
}

/* In glibc a cnd_t is a pthread_cond_t, and libfaketime puts this wait right. */
int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
    int error = pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, until);
    return error == 0 ? thrd_success : error == ETIMEDOUT ? thrd_timedout : thrd_error;
}
