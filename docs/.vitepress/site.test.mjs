// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// The built site, as a browser shows it. Run it with make site-test; screenshots lie in bin/log/site.

import { after, before, test } from 'node:test'
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { basename, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'

const top = fileURLToPath(new URL('../..', import.meta.url))
const site = join(top, 'bin/site')
const pictures = join(top, 'bin/log/site')
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const phone = { width: 390, height: 844 }
const desktop = { width: 1280, height: 900 }

// All files below a directory, sorted.
const filesOf = (directory) => readdirSync(directory, { withFileTypes: true }).sort((a, b) => a.name < b.name ? -1 : 1)
  .flatMap((e) => e.isDirectory() ? filesOf(join(directory, e.name)) : [join(directory, e.name)])

// The addresses of the pages below the site: "faults/port-active/".
const pages = filesOf(site).filter((file) => file.endsWith('/index.html'))
  .map((file) => relative(site, file).replace(/index\.html$/, ''))

// A server that knows nothing of the site: a file, the index of a directory, or 404.
const types = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', woff2: 'font/woff2' }
const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, 'http://x')
  let file = join(site, decodeURIComponent(pathname))
  if (existsSync(file) && statSync(file).isDirectory()) {
    if (!pathname.endsWith('/')) return response.writeHead(301, { location: `${pathname}/` }).end()
    file = join(file, 'index.html')
  }
  if (!existsSync(file)) return response.writeHead(404).end()
  response.writeHead(200, { 'content-type': types[file.split('.').pop()] ?? 'text/plain' }).end(readFileSync(file))
})

let browser, home
before(async () => {
  rmSync(pictures, { recursive: true, force: true })
  mkdirSync(pictures, { recursive: true })
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening))
  home = `http://127.0.0.1:${server.address().port}/`
  browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update',
      '--disable-sync', '--no-first-run', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'],
  })
})
after(async () => {
  await browser?.close()
  server.close()
})

// A tab, and what goes wrong in it: errors of the console, and requests to others.
async function open(options) {
  const context = await browser.newContext(options)
  const tab = await context.newPage()
  const problems = [], asked = []
  tab.on('console', (message) => message.type() === 'error' && problems.push(`${tab.url()}: ${message.text()}`))
  tab.on('pageerror', (error) => problems.push(`${tab.url()}: ${error}`))
  context.on('request', (request) => {
    asked.push(request.url() + (request.postData() ?? ''))
    if (![home, 'data:', `blob:${home}`].some((own) => request.url().startsWith(own))) problems.push(`${tab.url()} asks ${request.url()}`)
  })
  return { tab, problems, asked }
}

// What axe-core finds that is serious.
async function inaccessible(tab) {
  await tab.evaluate(axe)
  const { violations } = await tab.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))
  return violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map(({ target }) => `${tab.url()}: ${id}: ${target}`))
}

test('TestSitePagesOnAPhone', async () => {
  assert.ok(pages.length > 60, `${pages.length} pages`)
  const problems = []
  const waiting = [...pages]
  const look = async () => {
    const { tab, problems: wrong } = await open({ viewport: phone })
    for (let page; (page = waiting.shift()) !== undefined;) {
      await tab.goto(home + page)
      const [width, all] = await tab.evaluate(() => [document.documentElement.clientWidth, document.documentElement.scrollWidth])
      if (all > width) wrong.push(`${page} has ${all} pixels in ${width}`)
      wrong.push(...await inaccessible(tab))
    }
    problems.push(...wrong)
  }
  await Promise.all([look(), look()])
  assert.deepEqual(problems, [])
})

test('TestSiteOnATablet', async () => {
  for (const width of [768, 960, 1100]) {
    const { tab } = await open({ viewport: { width, height: 900 } })
    await tab.goto(`${home}install/`)
    assert.equal(await tab.evaluate(() => document.documentElement.scrollWidth), width)
  }
})

test('TestSiteOnADesktop', async () => {
  for (const colorScheme of ['light', 'dark']) {
    const { tab, problems } = await open({ viewport: desktop, colorScheme })
    for (const page of ['', 'faults/port-active/', 'troubleshoot/', 'install/']) {
      await tab.goto(home + page)
      assert.equal(await tab.evaluate(() => document.documentElement.classList.contains('dark')), colorScheme === 'dark')
      problems.push(...await inaccessible(tab))
    }
    assert.ok(await tab.locator('button.copy').count() > 0, 'no button copies a command')
    assert.deepEqual(problems, [])
  }
})

// What people search for, and where it leads first: lines that programs print in public issues, and words of public guides. None comes
// from a list of the checks.
const searches = {
  ibv_reg_mr_iova2: 'troubleshoot/#ibv_reg_mr_iova2-failed-with-error-',
  'ibv_reg_mr_iova2 failed with error Cannot allocate memory': 'troubleshoot/#ibv_reg_mr_iova2-failed-with-error-Cannot-allocate-memory',
  'Call to ibv_reg_mr failed with error Cannot allocate memory': 'troubleshoot/#Call-to-ibv_reg_mr-failed',
  'Call to ibv_create_cq failed': 'troubleshoot/#Call-to-ibv_create_cq-failed',
  "Couldn't allocate MR": "troubleshoot/#Couldn't-allocate-MR",
  "Couldn't register MR": "troubleshoot/#Couldn't-register-MR",
  "Couldn't create CQ": "troubleshoot/#Couldn't-create-CQ",
  "Couldn't get context for the device": "troubleshoot/#Couldn't-get-context-for-the-device",
  "Couldn't read remote address": "troubleshoot/#Couldn't-read-remote-address",
  'Unable to read to socket/rdma_cm': 'troubleshoot/#Unable-to-read-to-socket/rdma_cm',
  'Failed to exchange data': 'troubleshoot/#Failed-to-exchange-data',
  "Couldn't set the link layer": "troubleshoot/#Couldn't-set-the-link-layer",
  'IB device mlx5_0 not found': 'troubleshoot/#IB-device-',
  'Failed to modify QP': 'troubleshoot/#Failed-to-modify-QP',
  'Transport retry count exceeded': 'troubleshoot/#Transport-retry-count',
  'error 12': 'troubleshoot/#Got-completion-from-peer-',
  'vendor err 129': 'troubleshoot/#Got-completion-from-peer-',
  'Network is unreachable': 'troubleshoot/#Call-to-ibv_modify_qp-failed-with-error-Network',
  'Did not detect devices': 'troubleshoot/#Did-not-detect-devices',
  'Failed to open libibverbs': 'troubleshoot/#Failed-to-open-libibverbs',
  'Got async event': 'troubleshoot/#Got-async-event',
  'Segmentation fault': 'troubleshoot/#Segmentation-fault',
  'unhandled system error': 'troubleshoot/#unhandled-system-error',
  'Using network Socket': 'troubleshoot/#Using-network-Socket',
  'GPU Direct RDMA Disabled for HCA': 'troubleshoot/#GPU-Direct-RDMA-Disabled-for-HCA',
  'VF GUID is not valid': 'troubleshoot/#',
  'incorrect RDMA subsystem network namespace': 'troubleshoot/#',
  'RDMA device "rdma_cm" not found': 'troubleshoot/#RDMA-device-"rdma_cm"-not-found',
  'does not support the kernel ABI': 'troubleshoot/#',
  'No IB devices found': 'troubleshoot/#No-IB-devices-found',
  'unknown service runtime.v1.RuntimeService': 'troubleshoot/#',
  'both tried to set': 'troubleshoot/#',
  'unresolvable CDI devices': 'troubleshoot/#',
  ibdev2netdev: 'troubleshoot/#ibdev2netdev',
  NCCL_IB_GID_INDEX: 'guide-spiderpool/#which-gid-index',
  'GPU memory cannot be registered': 'faults/gpu-direct/',
  'network.nvidia.com/operator.mofed.wait': 'guide-gpu-cluster/',
  SpiderMultusConfig: 'guide-spiderpool/',
  sriov_numvfs: 'guide-sriov/',
  'smarter-device-manager': 'guide-sriov/',
  'LimitMEMLOCK': 'comparison/',
  'limits.conf': 'comparison/',
  base_runtime_spec: 'comparison/',
  'port-active': 'faults/port-active/',
  'container-memlock': 'faults/container-memlock/',
  NRIRDMANotRegistered: 'alerts/#nrirdmanotregistered',
  NRIRDMALeftAlone: 'alerts/#nrirdmaleftalone',
  RDMARepairLeavesContainers: 'alerts/#rdmarepairleavescontainers',
}

// Lines that programs print in public issues, and that have the words of no message: the names of verbs and their statuses lead.
const unknown = {
  'async_rdma::mr_allocator: RawMemoryRegion::register_from_pd failed Os { code: 12, kind: OutOfMemory, message: "Cannot allocate memory" }':
    'pods/#my-program-cannot-register-memory',
  'na_ofi_mem_register(): fi_mr_reg() failed, rc: -5 (Input/output error)': 'troubleshoot/#fi_mr_reg:',
  'registeration failed with errno: Cannot allocate memory': 'troubleshoot/#ibv_reg_mr_iova2-failed-with-error-Cannot-allocate-memory',
  'rpma_peer_mr_reg: ibv_reg_mr() failed: Invalid argument': 'troubleshoot/#ibv_reg_mr:-EINVAL',
  'what():  ibv_reg_mr failed (errno 14) (Ib failure: Bad address)': 'troubleshoot/#ibv_reg_mr-failed:-Bad-address',
  "Couldn't register GPU MR": "troubleshoot/#Couldn't-register-MR",
  'xio_rdma_verbs.c:248 [ERROR] - ibv_reg_mr failed, Bad address. addr:0x7f21e3369dc0, length:15863892992, access:0x7':
    'troubleshoot/#ibv_reg_mr_iova2-failed-with-error-Bad-address',
  'Check failed: self_ Failed to register memory region.': 'troubleshoot/#memory-cannot-be-registered',
  'ibv_create_cq: Invalid argument(22)': 'troubleshoot/#ibv_create_cq:-EINVAL',
  'SEND C6258863.0.1B3: IBV_WC_RETRY_EXC_ERR': 'troubleshoot/#completion:-IBV_WC_RETRY_EXC_ERR',
}

// The messages of the table, whose fixed parts a line has in order.
const table = [...readFileSync(join(top, 'docs/troubleshoot.md'), 'utf8').matchAll(/^\| (`.*`) \| .* \| .*\|$/gm)]
  .flatMap(([, messages]) => messages.split('<br>')).map((message) => message.slice(1, -1).toLowerCase().split(' ... '))
const stands = (line) => table.find((parts) => parts.reduce((at, part) => at < 0 ? at : line.toLowerCase().indexOf(part, at), 0) >= 0)

async function search(tab, words) {
  await tab.locator('.VPNavBarSearch button').first().click()
  const box = tab.locator('.VPLocalSearchBox input')
  await box.waitFor()
  await box.fill('') // it has the last words
  await tab.locator('.VPLocalSearchBox .result').first().waitFor({ state: 'detached' })
  const begin = Date.now()
  await box.fill(words)
  const first = tab.locator('.VPLocalSearchBox .result').first()
  await first.waitFor()
  return { leads: decodeURIComponent(await first.getAttribute('href')), took: Date.now() - begin }
}

test('TestSiteSearch', async () => {
  const { tab, problems } = await open({ viewport: desktop })
  await tab.goto(home)
  const wrong = []
  const times = []
  for (const line of Object.keys(unknown)) assert.equal(stands(line), undefined, line)
  for (const [words, where] of Object.entries({ ...searches, ...unknown })) {
    const { leads, took } = await search(tab, words)
    if (!leads.startsWith(`/${where}`)) wrong.push(`${words} leads to ${leads}, want ${where}`)
    times.push(took)
    await tab.keyboard.press('Escape')
  }
  assert.deepEqual(wrong, [])
  await search(tab, 'port-active')
  await tab.keyboard.press('Enter')
  await tab.waitForURL((url) => url.href.startsWith(`${home}faults/port-active/`))
  assert.deepEqual(problems, [])
  const usual = times.sort((a, b) => a - b)[times.length >> 1] // the machine may be busy
  assert.ok(usual <= 1000, `a search takes ${usual} ms`)
})

// Each link of a page, and each address that programs, alerts, the chart, or a text of the repository names.
test('TestSiteLinksLead', () => {
  const ids = new Map(pages.map((page) => {
    const html = readFileSync(join(site, page, 'index.html'), 'utf8').replaceAll('&#39;', "'")
    return [page, { html, ids: new Set([...html.matchAll(/ id="([^"]*)"/g)].map(([, id]) => id.replaceAll('&quot;', '"'))) }]
  }))
  const problems = []
  const check = (from, page, heading) => {
    const target = ids.get(page && page.replace(/\/?$/, '/'))
    if (!target) problems.push(`${from}: there is no page ${page}`)
    else if (heading && !target.ids.has(decodeURIComponent(heading))) problems.push(`${from}: ${page} has no #${heading}`)
  }
  for (const [page, { html }] of ids) {
    for (const [, href] of html.matchAll(/<a [^>]*href="((?:\/(?!\/)|#)[^"]*)"/g)) {
      const [path, heading] = href.split('#')
      if (!path.startsWith('/assets/')) check(page, path ? path.slice(1) : page, heading)
    }
  }
  const address = readFileSync(join(top, 'docs/docs.go'), 'utf8').match(/^const Site = "(.*)"$/m)[1]
  const named = execFileSync('git', ['grep', '-IohE', `${address}[a-zA-Z0-9/_-]*(#[a-zA-Z0-9_-]+)?`, '--', ':!docs/.vitepress'], { cwd: top })
  for (const name of new Set(String(named).trim().split('\n'))) check(name, ...name.slice(address.length).split('#'))
  for (const [, page, heading] of readFileSync(join(top, 'README.md'), 'utf8').matchAll(/\]\(docs\/([a-z/-]+)\.md(?:#([^)]*))?\)/g)) {
    check('README.md', page, heading)
  }
  for (const [, messages] of readFileSync(join(top, 'docs/troubleshoot.md'), 'utf8').matchAll(/^\| (`(?:[^`]|`<br>`)*`) \| /gm)) {
    for (const [, message] of messages.matchAll(/`([^`]*)`/g)) {
      check('a message', 'troubleshoot', encodeURIComponent(message.replaceAll('\\|', '|').replace(/\s+/g, '-')))
    }
  }
  for (const file of readdirSync(join(top, 'docs/faults'))) check('doctor', `faults/${file.replace(/\.md$/, '')}`) // each check has one
  assert.deepEqual(problems, [])
})

// The box, as somebody reads it.
const boxSays = (tab) => tab.evaluate(() => {
  const texts = (within, selector) => [...within.querySelectorAll(selector)].map((element) => element.textContent.trim())
  const one = (within, selector) => texts(within, selector)[0] ?? ''
  return {
    roots: [...document.querySelectorAll('.why-root')].map((root) => ({
      lines: [...root.querySelectorAll('.why-line')].map((line) => [one(line, 'span'), one(line, 'code')]),
      what: one(root, '[data-is=what]'), device: one(root, '[data-is=device]'), process: one(root, '[data-is=process]'),
      times: one(root, '[data-is=times]'),
      causes: [...root.querySelectorAll('li')].map((cause) => ({
        text: one(cause, '[data-is=cause]'), apart: one(cause, '[data-is=apart]'), who: one(cause, '[data-is=who]'),
        pages: [...cause.querySelectorAll('[data-is=page]')].map((link) => link.getAttribute('href')),
      })),
    })),
    remarks: [...document.querySelectorAll('.why-remarks li')].map((remark) => [one(remark, 'span'), one(remark, 'code'), one(remark, '[data-is=reason]')]),
    next: one(document, '[data-is=next]'),
  }
})

// The same, of the command's result.
const bare = (text = '') => text.replaceAll('`', '')
const commandSays = ({ roots, remarks, next = '' }) => ({
  roots: roots.map((root) => ({
    lines: [root, root.statusLine].filter(Boolean).map(({ number, text }) => [`line ${number}:`, text]),
    what: [root.operation, root.status, root.detail].filter(Boolean).join(', '), device: root.device ?? '', process: root.rank ?? '',
    times: root.times > 1 ? String(root.times) : '',
    causes: root.causes.map(({ text, apart, who = '', page, see }) => ({
      text: bare(text), apart: bare(apart), who,
      pages: [...page ? [`/faults/${page}/`] : [], ...see ? [`/${see.replace('.md', '/')}`] : []],
    })),
  })),
  remarks: remarks.map(({ number, text, reason }) => [`${number}:`, text, reason]),
  next: next.replace(' (on the node)', ''),
})

const logs = filesOf(join(top, 'cmd/internal/why/testdata/logs'))
const fileField = '.why input[type=file]'
const answered = (tab) => tab.locator('.why-answer').waitFor({ state: 'attached' })

test('TestSiteBoxAgreesWithTheCommand', async () => {
  const command = join(top, 'bin/why/rdma-spec')
  execFileSync('go', ['build', '-o', command, './cmd/rdma-spec'], { cwd: top, env: { ...process.env, CGO_ENABLED: '0' } })
  const why = (log) => {
    try {
      return execFileSync(command, ['why', log, '-o', 'json'])
    } catch ({ status, stdout }) { // a line matters
      assert.equal(status, 1)
      return stdout
    }
  }
  assert.ok(logs.length > 50, `${logs.length} logs`)
  const { tab, problems } = await open({ viewport: desktop })
  await tab.goto(`${home}troubleshoot/`)
  for (const log of logs) {
    await tab.locator(fileField).setInputFiles(log)
    await tab.locator('.why [role=status]', { hasText: `${basename(log)}:` }).waitFor()
    await answered(tab)
    assert.deepEqual(await boxSays(tab), commandSays(JSON.parse(why(log))), log)
  }
  assert.deepEqual(problems, [])
})

// Pastes a text as a person does.
const paste = (tab, text) => tab.locator('.why textarea').evaluate((box, pasted) => {
  const clipboardData = new DataTransfer()
  clipboardData.setData('text', pasted)
  if (box.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }))) {
    box.value += pasted
    box.dispatchEvent(new Event('input', { bubbles: true }))
  }
}, text)

test('TestSiteBoxSendsNothing', async (t) => {
  const others = []
  const other = createServer((request, response) => others.push(request.url) && response.end())
  await new Promise((listening) => other.listen(0, '127.0.0.1', listening))
  t.after(() => other.close()) // else a test that fails would not end
  const elsewhere = `http://127.0.0.1:${other.address().port}/`
  const { tab, problems, asked } = await open({ viewport: desktop })
  await tab.goto(home)
  await tab.waitForLoadState('networkidle')
  assert.ok(!asked.some((url) => url.includes('wasm')), 'the program is loaded before the box is used')
  const [program] = filesOf(join(site, 'assets')).filter((file) => file.endsWith('.gz'))
  assert.ok(statSync(program).size <= 1.5e6, `${program} has ${statSync(program).size} bytes`)
  const before = asked.length
  const evil = `<img src="${elsewhere}img" onerror="document.title = 'evil'"><script src="${elsewhere}"></script>`
  await paste(tab, `${evil} ibv_reg_mr failed: Cannot allocate memory at secret-node 10.11.12.13 GID fe80::5\n` +
    `mlx5_0${evil}: Got completion from peer 10.11.12.13<40554> with error 12, opcode 0, len 0, vendor err 129 ${evil}\n`)
  await answered(tab)
  const said = await boxSays(tab)
  assert.ok(said.roots.some(({ lines }) => lines.some(([, text]) => text.includes('<img src='))), 'the line is not shown as it is')
  assert.equal(await tab.locator('.why img, .why script, .why iframe').count(), 0)
  assert.notEqual(await tab.title(), 'evil')
  for (const link of await tab.locator('.why-link').all()) {
    const href = decodeURIComponent(await link.getAttribute('href'))
    assert.ok(['#why=ibv_reg_mr,ENOMEM', '#why=completion,IBV_WC_RETRY_EXC_ERR'].includes(href), href)
  }
  // Beside the program, VitePress fetches the pages of links that are in sight, whenever the browser is idle.
  const names = asked.slice(before).map((url) => url.replace(/.*\//, '').replace(/\.[\w-]{8}\./, '.'))
  assert.deepEqual(names.filter((name) => !/^[0-9a-f-]{36}$|\.md\.js$/.test(name)), ['why.js', 'why.wasm.gz'])
  assert.deepEqual(problems, [])
  // Whatever ran in the page or in its worker could reach nobody.
  const reach = (url) => fetch(url, { mode: 'no-cors', method: 'POST', body: 'secret' }).then(() => 'sent', () => 'refused')
  assert.equal(await tab.evaluate(reach, elsewhere), 'refused')
  assert.equal(await tab.workers()[0].evaluate(reach, elsewhere), 'refused')
  assert.equal(await tab.evaluate((url) => new Promise((done) => {
    const image = new Image()
    image.onerror = () => done('refused')
    image.onload = () => done('sent')
    image.src = url
  }), elsewhere), 'refused')
  assert.deepEqual(others, [])
})

// A long log is read beside the page, which goes on, and another one replaces it.
test('TestSiteBoxReadsALongLog', async () => {
  const { tab, problems } = await open({ viewport: desktop })
  await tab.goto(`${home}troubleshoot/`)
  await tab.evaluate(() => { window.ticks = 0; setInterval(() => { window.ticks += document.querySelector('.why [role=status]').textContent.includes('%') }, 1) })
  const line = 'node-1:17:99 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC, nothing failed\n'
  const long = line.repeat(10e6 / line.length) + 'node-1:17:99 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n'
  await paste(tab, long)
  await answered(tab)
  assert.equal((await boxSays(tab)).roots[0].what, 'ibv_reg_mr, ENOMEM')
  assert.equal(await tab.locator('.why textarea').inputValue(), '')
  assert.ok(await tab.evaluate(() => window.ticks) > 20, 'the page stops while the log is read')
  await paste(tab, long)
  await paste(tab, 'ibv_reg_mr failed: Bad address')
  await tab.locator('.why [data-is=what]', { hasText: 'EFAULT' }).waitFor()
  await tab.locator('.why textarea').fill('all is well')
  await tab.locator('.why button').click()
  await tab.locator('.why [role=status]', { hasText: '1 line read: no line of RDMA matters' }).waitFor()
  assert.deepEqual(problems, [])
})

// A link to an answer has its operation and its status, and one that names anything else has no answer.
test('TestSiteBoxLink', async () => {
  const { tab, problems } = await open({ viewport: desktop })
  await tab.goto(`${home}troubleshoot/`)
  await paste(tab, 'Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR')
  await answered(tab)
  const { roots: [{ causes }] } = await boxSays(tab)
  const href = await tab.locator('.why-link').getAttribute('href')
  assert.equal(decodeURIComponent(href), '#why=ibv_modify_qp to RTR,ETIMEDOUT')
  await tab.goto('about:blank')
  await tab.goto(`${home}troubleshoot/${href}`)
  await answered(tab)
  assert.deepEqual((await boxSays(tab)).roots.map((root) => [root.what, root.causes]), [['ibv_modify_qp to RTR, ETIMEDOUT', causes]])
  await tab.goto('about:blank')
  await tab.goto(`${home}troubleshoot/#why=${encodeURIComponent('<img src=x>')},ENOMEM`)
  await answered(tab)
  const [unknown] = (await boxSays(tab)).roots
  assert.deepEqual([unknown.causes, await tab.locator('.why img').count()], [[], 0])
  assert.deepEqual(problems, [])
})

test('TestSiteIsTheSameAgain', () => {
  const again = join(top, 'bin/site-again')
  execFileSync('npx', ['vitepress', 'build', '..', '--outDir', again], { cwd: join(top, 'docs/.vitepress'), stdio: 'pipe' })
  const names = (directory) => filesOf(directory).map((file) => relative(directory, file))
  assert.deepEqual(names(again), names(site))
  assert.deepEqual(names(site).filter((file) => !readFileSync(join(site, file)).equals(readFileSync(join(again, file)))), [])
  rmSync(again, { recursive: true })
})

// For people to look at.
test('TestSiteScreenshots', async () => {
  const wanted = new Set()
  const ofPrograms = Object.values(Object.fromEntries(logs.map((log) => [basename(log).split('-', 1)[0], log]))) // one of each program
  const wrong = []
  for (const [device, viewport] of Object.entries({ desktop, phone })) {
    for (const colorScheme of ['light', 'dark']) {
      const { tab, problems } = await open({ viewport, colorScheme })
      const shoot = async (name, fullPage) => {
        const path = join(pictures, `${name}-${device}-${colorScheme}.png`)
        await tab.screenshot({ path, fullPage })
        wanted.add(path)
      }
      await tab.goto(home)
      await shoot('first', true)
      for (const page of ['faults/guid-valid', 'faults', 'concepts', 'install', 'guide-gpu-cluster', 'comparison']) {
        await tab.goto(`${home}${page}/`)
        await shoot(page.replace('/', '-'), true)
      }
      await tab.goto(`${home}troubleshoot/#Couldn't-allocate-MR`)
      await shoot('message', false)
      await search(tab, "Couldn't allocate MR")
      await shoot('search', false)
      await tab.goto(`${home}troubleshoot/`)
      for (const log of ofPrograms) {
        await tab.locator(fileField).setInputFiles(log)
        await tab.locator('.why [role=status]', { hasText: `${basename(log)}:` }).waitFor()
        await answered(tab)
        await shoot(`box-${basename(log, '.log')}`, false)
      }
      wrong.push(...await inaccessible(tab), ...problems)
    }
  }
  assert.deepEqual(filesOf(pictures), [...wanted].sort())
  assert.deepEqual(wrong, [])
})
