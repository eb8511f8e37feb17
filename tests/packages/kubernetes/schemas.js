// Validates each line of standard input, an object of Kubernetes in JSON, by kubernetes-models, and
// says what is wrong. Its validators ask for all the fields that they know: what nobody has asked
// for, nobody knows.
const fs = require('fs');
const path = require('path');
const modules = process.argv[2];

const groups = {'v1': 'IoK8sApiCoreV1', 'apps/v1': 'IoK8sApiAppsV1',
    'policy/v1': 'IoK8sApiPolicyV1', 'networking.k8s.io/v1': 'IoK8sApiNetworkingV1'};
const monitor = 'MonitoringCoreosComV1';

function validator(o) {
    const kind = o.kind;
    for (const [pack, name] of [['kubernetes-models', (groups[o.apiVersion] || '?') + kind],
        ['@kubernetes-models/prometheus-operator', monitor + kind]]) {
        const file = path.join(modules, pack, '_schemas', name + '.js');
        if (fs.existsSync(file)) return require(file).validate;
    }
    return null;
}

const seen = new Map(); // by object: the keys that were asked for
function watched(value) {
    if (value === null || typeof value !== 'object') return value;
    for (const k of Object.keys(value)) value[k] = watched(value[k]);
    const keys = new Set();
    const all = new Proxy(value, {
        get(target, key) { keys.add(key); return target[key]; },
        ownKeys(target) {
            Object.keys(target).forEach(k => keys.add(k));
            return Reflect.ownKeys(target);
        },
    });
    seen.set(all, {value, keys});
    return all;
}

function unknown(all, where, out) {
    const entry = seen.get(all);
    if (!entry) return;
    for (const k of Object.keys(entry.value)) {
        if (!Array.isArray(entry.value) && !entry.keys.has(k)) out.push(`${where}/${k} is unknown`);
        else unknown(entry.value[k], `${where}/${k}`, out);
    }
}

let bad = 0, n = 0;
for (const line of fs.readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
    const o = JSON.parse(line), name = `${o.kind} ${o.metadata.name}`, validate = validator(o);
    const said = [];
    n++;
    if (!validate) said.push('there is no schema of its kind');
    else {
        const all = watched(o);
        if (!validate(all))
            said.push(...validate.errors.map(e => `${e.instancePath} ${e.message || e.keyword}`));
        unknown(all, '', said);
    }
    for (const s of said) console.log(`${name}: ${s}`);
    bad += said.length;
}
console.log(`${n} objects, ${bad} mistakes`);
process.exit(bad ? 1 : 0);
