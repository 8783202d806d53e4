/* The calls of src/paddock/executors/win32.py with the structures of Windows' own headers: what each of them answers, one
 * line each. Printed are also the bytes of the structures, to be compared. Built by mingw, run under Wine. */
#include <windows.h>
#include <sddl.h>
#include <stdio.h>

static void tell(const char *call, int held) { printf("%s %s %lu\n", held ? "ok" : "no", call, held ? 0 : GetLastError()); }

static void bytes(const char *name, const void *at, size_t size) {
    printf("bytes %s ", name);
    for (size_t i = 0; i < size; i++) printf("%02x", ((const unsigned char *)at)[i]);
    printf("\n");
}

int main(void) {
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_ACTIVE_PROCESS | JOB_OBJECT_LIMIT_JOB_MEMORY
        | JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION | JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    limits.BasicLimitInformation.ActiveProcessLimit = 10;
    limits.JobMemoryLimit = 512ull << 20;
    bytes("limits", &limits, sizeof limits);
    STARTUPINFOEXW info = {.StartupInfo = {.cb = sizeof info, .dwFlags = STARTF_USESTDHANDLES,
        .hStdInput = (HANDLE)1, .hStdOutput = (HANDLE)2, .hStdError = (HANDLE)3}, .lpAttributeList = (void *)4};
    bytes("startup", &info, sizeof info);
    TOKEN_MANDATORY_LABEL fixed;
    ZeroMemory(&fixed, sizeof fixed);
    fixed.Label.Sid = (PSID)5;
    fixed.Label.Attributes = SE_GROUP_INTEGRITY;
    bytes("label", &fixed, sizeof fixed);
    printf("size %zu %zu %zu\n", sizeof(PROCESS_INFORMATION), sizeof(JOBOBJECT_BASIC_ACCOUNTING_INFORMATION),
        offsetof(JOBOBJECT_BASIC_ACCOUNTING_INFORMATION, ActiveProcesses));
    printf("flags %lx %lx %x %x\n", (unsigned long)(CREATE_SUSPENDED | CREATE_NO_WINDOW | CREATE_UNICODE_ENVIRONMENT
        | EXTENDED_STARTUPINFO_PRESENT), (unsigned long)PROC_THREAD_ATTRIBUTE_HANDLE_LIST,
        TOKEN_ASSIGN_PRIMARY | TOKEN_DUPLICATE | TOKEN_QUERY | TOKEN_ADJUST_DEFAULT, TokenIntegrityLevel);

    HANDLE job = CreateJobObjectW(NULL, NULL);
    tell("CreateJobObjectW", job != NULL);
    tell("SetInformationJobObject",
        SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits));

    HANDLE own, low;
    PSID sid;
    tell("OpenProcessToken", OpenProcessToken(GetCurrentProcess(),
        TOKEN_ASSIGN_PRIMARY | TOKEN_DUPLICATE | TOKEN_QUERY | TOKEN_ADJUST_DEFAULT, &own));
    tell("DuplicateTokenEx", DuplicateTokenEx(own, 0, NULL, SecurityImpersonation, TokenPrimary, &low));
    tell("ConvertStringSidToSidW", ConvertStringSidToSidW(L"S-1-16-4096", &sid));
    TOKEN_MANDATORY_LABEL label = {{sid, SE_GROUP_INTEGRITY}};
    bytes("sid", sid, GetLengthSid(sid));
    tell("SetTokenInformation",
        SetTokenInformation(low, TokenIntegrityLevel, &label, sizeof label + GetLengthSid(sid)));
    BYTE found[256];
    DWORD needed;
    if (GetTokenInformation(low, TokenIntegrityLevel, found, sizeof found, &needed))
        printf("integrity %lx\n", *GetSidSubAuthority(((TOKEN_MANDATORY_LABEL *)found)->Label.Sid, 0));

    wchar_t line[] = L"cmd.exe /d /s /c \"ping -n 60 127.0.0.1 >NUL\"";
    STARTUPINFOEXW real = {.StartupInfo = {.cb = sizeof real}};
    PROCESS_INFORMATION made;
    tell("CreateProcessAsUserW", CreateProcessAsUserW(low, NULL, line, NULL, NULL, FALSE,
        CREATE_SUSPENDED | CREATE_NO_WINDOW | EXTENDED_STARTUPINFO_PRESENT, NULL, NULL, &real.StartupInfo, &made));
    tell("AssignProcessToJobObject", AssignProcessToJobObject(job, made.hProcess));
    tell("ResumeThread", ResumeThread(made.hThread) != (DWORD)-1);
    JOBOBJECT_BASIC_ACCOUNTING_INFORMATION counted;
    tell("QueryInformationJobObject",
        QueryInformationJobObject(job, JobObjectBasicAccountingInformation, &counted, sizeof counted, NULL));
    tell("still running", WaitForSingleObject(made.hProcess, 0) == WAIT_TIMEOUT);
    CloseHandle(job);
    tell("ended with its job", WaitForSingleObject(made.hProcess, 30000) == WAIT_OBJECT_0);
    return 0;
}
