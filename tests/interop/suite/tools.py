"""Installs what is missing on the machine and builds the clients, once; later runs need no network."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(HERE, ".work")
AGENTS = os.path.join(HERE, "agents")
JAVA_BROKER = "broker-5.3.3"
WHEEL = "rocketmq-client-python==0.5.0rc2"
# The C++ library writes its logs below $HOME and needs no other file.
CPP_LIBRARY = os.path.join(WORK, "cpp", "rocketmq", "librocketmq.so")
GO_AGENT = os.path.join(WORK, "go", "agent")


def say(text):
    print(f"-- {text}", flush=True)


def run(command, **options):
    """Runs a command that must succeed within 10 minutes; its output is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-4000:]}")


def need(*programs):
    """Installs the Debian packages of those programs that are not there."""
    missing = [package for program, package in programs if shutil.which(program) is None]
    if missing:
        say(f"installing {', '.join(missing)}")
        run(["apt-get", "update"])
        run(["apt-get", "install", "-y", "--no-install-recommends", *missing],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def stamped(folder, sources, build):
    """Calls `build(folder)` unless the folder was built before from sources of the same content."""
    digest = hashlib.sha256()
    for source in sources:
        with open(source, "rb") as file:
            digest.update(file.read())
    stamp = os.path.join(folder, "stamp")
    if os.path.exists(stamp) and open(stamp).read() == digest.hexdigest():
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    build(folder)
    with open(stamp, "w") as file:
        file.write(digest.hexdigest())


def java_jars(name):
    """The folder of jars that `agents/java/pom-NAME.xml` asks for."""
    pom = os.path.join(AGENTS, "java", f"pom-{name}.xml")
    folder = os.path.join(WORK, f"java-{name}")
    lib = os.path.join(folder, "lib")

    def build(_):
        need(("mvn", "maven"), ("javac", "default-jdk-headless"))
        say(f"fetching the jars of {os.path.basename(pom)}")
        run(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={lib}"])

    stamped(folder, [pom], build)
    return lib


def java_agent(version):
    """The class path of the Java agent compiled against a client version."""
    return _compiled(version, "Agent.java", f"java-{version}-agent")


def java_store_agent():
    """The class path of the agent that opens store directories, with the jars of the broker."""
    return _compiled(JAVA_BROKER, "StoreAgent.java", f"java-{JAVA_BROKER}-agent")


def _compiled(jars, name, folder):
    need(("javac", "default-jdk-headless"))
    lib = java_jars(jars)
    source = os.path.join(AGENTS, "java", name)
    classes = os.path.join(WORK, folder)

    def build(folder):
        say(f"compiling {name} for {jars}")
        run(["javac", "-nowarn", "-Xlint:-deprecation", "-cp", os.path.join(lib, "*"), "-d", folder, source])

    stamped(classes, [source, os.path.join(AGENTS, "java", f"pom-{jars}.xml")], build)
    return f"{classes}:{lib}/*"


def go_agent():
    folder = os.path.join(AGENTS, "go")

    def build(_):
        need(("go", "golang-go"))
        say("building the Go agent")
        run(["go", "build", "-o", GO_AGENT, "."], cwd=folder)

    stamped(os.path.dirname(GO_AGENT), [os.path.join(folder, n) for n in ("main.go", "go.mod", "go.sum")], build)
    return GO_AGENT


def cpp_library():
    def build(folder):
        say(f"fetching the wheel {WHEEL}")
        run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.7",
             "--platform", "manylinux1_x86_64", "-d", folder, WHEEL])
        (wheel,) = [name for name in os.listdir(folder) if name.endswith(".whl")]
        with zipfile.ZipFile(os.path.join(folder, wheel)) as archive:
            archive.extractall(folder)

    stamped(os.path.join(WORK, "cpp"), [], build)
    return CPP_LIBRARY
